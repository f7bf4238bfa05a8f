"""What was tried before a study was fixed."""

import pytest

from graphjoule import GraphjouleError
from reproduction.pages import fill_page, read_results
from reproduction.pages.explored import Trial, read_trials, trials_table


def trial(accuracies, **settings):
    return Trial(settings=settings, val_accuracy=accuracies, selected_epoch=[3] * len(accuracies), seconds=1.0)


def test_trials_are_listed_the_best_first():
    table = trials_table([trial([0.3]), trial([0.5, 0.7], rho=1.0, dropout=0.6), trial([0.4, 0.4], rho=0.1)])
    assert table.splitlines() == [
        "| rho | dropout | validation accuracy (n) | selected epoch, median |",
        "|---|---|---|---|",
        "| 1.0 | 0.6 | 60.0 ± 14.1 (2) | 3 |",
        "| 0.1 |  | 40.0 ± 0.0 (2) | 3 |",
        "|  |  | 30.0 (1) | 3 |",
    ]


def test_trials_are_read_from_the_studys_folder(tmp_path):
    (tmp_path / "constraint").mkdir()
    path = tmp_path / "constraint" / "explored.jsonl"
    path.write_text("".join(t.model_dump_json() + "\n" for t in (trial([0.5], rho=1.0), trial([0.25]))))
    results = read_results(tmp_path)
    assert [t.settings for t in results.explored["constraint"]] == [{"rho": 1.0}, {}]
    assert "| 1.0 | 50.0 (1) | 3 |" in fill_page("<!-- results explored -->\n<!-- end -->\n", results)


@pytest.mark.parametrize("text", ['{"settings": {}}', "no JSON", '{"settings": {}, "val_accuracy": [], "seconds": 1}'])
def test_a_file_that_holds_no_trials_is_a_sentence(tmp_path, text):
    (tmp_path / "explored.jsonl").write_text(text)
    with pytest.raises(
        GraphjouleError,
        match=r"explored\.jsonl is not a file of trials: expected seconds, selected_epoch, settings, val_accuracy in",
    ):
        read_trials(tmp_path / "explored.jsonl")
