"""The paper as the first user of graphjoule: its records, pages and figures, and the speed benchmarks."""
