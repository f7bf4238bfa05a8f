"""Optuna, which the search runs on: an extra, imported when a search begins."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from graphjoule.errors import GraphjouleError

__all__ = ["import_optuna", "is_taken_over", "make_sampler", "quiet", "start_waiting"]


def import_optuna() -> Any:
    """The package, or a sentence that says how to get it."""
    try:
        import optuna
    except ImportError as error:
        raise GraphjouleError(
            "A search needs Optuna, which is not installed: pip install 'graphjoule[tune]'."
        ) from error
    return optuna


def make_sampler(seed: int, slot: int) -> Any:
    """TPE for one trial, drawn from the search's seed and the trial's place in it.

    One generator for the whole search would start anew when the search goes on after a stop, and repeat itself. Several
    settings are drawn together, and what other workers are trying counts as bad, so that they do not try the same.
    """
    optuna = import_optuna()
    drawn = int(np.random.SeedSequence([seed, slot]).generate_state(1)[0])
    with warnings.catch_warnings():  # in Optuna 4 both options call themselves experimental; in 5 they are the default
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(seed=drawn, multivariate=True, constant_liar=True)


def is_taken_over(error: Exception) -> bool:
    """Whether an error of a storage says that somebody has finished a trial before us.

    Optuna's error for it is a plain `RuntimeError` in version 4 and a kind of it in 5; its databases' errors are none.

    >>> is_taken_over(ValueError("Cannot tell a FAIL trial.")), is_taken_over(ConnectionError())
    (True, False)
    """
    return isinstance(error, RuntimeError) or (isinstance(error, ValueError) and str(error).startswith("Cannot tell"))


def start_waiting(study: Any, waiting: Any) -> Any:
    """Start one trial that waits in a study; None if somebody else was quicker.

    `Study.ask` starts the first that waits, whoever has put it there. Which one it starts cannot be said by any public
    name, so this does what it does for one trial; the names are the same in Optuna 4 and 5.
    """
    trial = import_optuna().trial
    try:
        is_ours = study._storage.set_trial_state_values(waiting._trial_id, trial.TrialState.RUNNING)
    except Exception as error:
        if not is_taken_over(error):
            raise
        is_ours = False
    return trial.Trial(study, waiting._trial_id) if is_ours else None


@contextmanager
def quiet() -> Iterator[None]:
    """Let Optuna speak of warnings only, and leave its loudness as it was."""
    optuna = import_optuna()
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
