"""The paper's tables and figures, each as trainings, records of them, and what is drawn from the records."""
