import math
from dataclasses import replace

from graphjoule.cli import progress as cli_progress
from graphjoule.training import Progress

STATE = Progress(epoch=3, epochs=9, num_active=2, num_runs=4, train_loss=1.5, val={"loss": 0.25, "accuracy": 0.5})


def test_before_the_first_validation_progress_says_nothing_of_one(monkeypatch, capsys):
    monkeypatch.setattr(cli_progress, "_SECONDS_BETWEEN_LINES", 0.0)
    with cli_progress.show_progress("egnn") as on_progress:
        on_progress(replace(STATE, val=dict.fromkeys(STATE.val, math.nan)))
        on_progress(replace(STATE, val=STATE.val | {"loss": math.nan}))
    start = "egnn: epoch 3/9, 2/4 runs, train loss 1.500"
    lines = capsys.readouterr().err.splitlines()
    assert lines == [start, f"{start}, val loss nan, val accuracy 0.500"]  # a loss that broke is shown
