"""A run folder: what a training writes, and how it goes on after having been killed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, Field, field_validator
from torch import Tensor

from graphjoule.errors import GraphjouleError, choices
from graphjoule.files import (
    FLEETING,
    check_free,
    ensure_folder,
    folder_lock,
    foreign_names,
    read_bytes,
    remove_temporaries,
    write_json,
    write_text,
)
from graphjoule.nn import GraphModel
from graphjoule.tasks import Split
from graphjoule.tasks.facts import Source, TaskFacts
from graphjoule.training.comparison import Comparison, read_comparison, write_comparison
from graphjoule.training.evaluation import Evaluation, read_evaluation, write_evaluation
from graphjoule.training.loop import RunResult
from graphjoule.training.model_card import model_card
from graphjoule.training.recipe import Recipe
from graphjoule.training.records import Record, append_record, read_records
from graphjoule.training.saving import load_parameters, read_tensors, save_model, write_tensors

_LOCK_NAME = ".lock"
_OF_SPLITS = ("train_index", "val_index")
_MAY_BE_MISSING = ("draws.", "states.", *_OF_SPLITS)  # of a checkpoint
SEARCH_NAME = f"{FLEETING}auto"  # where a search for a model works while it lasts; its winner is beside it
SUMMARY_NAME = "auto.json"  # what it has tried, there first and then beside the winner
_BEFORE_IT_BEGINS = (_LOCK_NAME,)  # what is there before ``run.json``


class About(BaseModel):
    """The content of ``run.json``.

    Attributes:
        format: version of this list of fields; a folder of format 1, which does not say so, is read too.
        recipe: the settings.
        groups: which seeds train together: the same groups give the same bits.
        data: what is trained on; None in a folder that is older than the field.
        splits: fingerprint of the split of every seed in `groups`; empty in a folder that is older than the field.
        members: names of the run folders in ``members/`` whose models predict together with those of this one.
    """

    format: Literal[2] = 2
    recipe: Recipe
    groups: list[list[int]]
    data: TaskFacts | None = None
    splits: dict[int, str] = {}
    members: list[Annotated[str, Field(pattern=r"^\w[\w.-]*$")]] = []

    @field_validator("recipe", mode="before")
    @classmethod
    def _read_recipe(cls, given: Any) -> Any:
        return Recipe.from_fields(given) if isinstance(given, dict) else given


class RunFolder:
    """The files of one `fit`: ``run.json``, ``records.jsonl``, ``model-seed-N.safetensors``, ``MODEL_CARD.md``.

    ``evaluation.safetensors`` is for reports: the predictions of the run that is best on its validation nodes.
    ``comparison.json`` is there where `graphjoule.tuning.worth.assess` has compared the runs with simpler models, and
    ``members/`` where `graphjoule.tuning.auto` found models that are better together: a run folder of each other one.
    While it trains there is a checkpoint too; the empty ``.lock``, which its process holds then, stays. Every file is
    whole at any moment. A seed counts as done when its record is there; its model is written first.

    Args:
        path: the folder; created by `open`.

    Attributes:
        checkpoint_threads: how many threads the group of runs began with whose checkpoint this is; None is unknown.
        checkpoint_backend: by which backend, likewise.
    """

    checkpoint_threads: int | None = None
    checkpoint_backend: str | None = None

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.records_path = self.path / "records.jsonl"
        self._about_path = self.path / "run.json"
        self._checkpoint_path = self.path / "checkpoint.safetensors"
        self.evaluation_path = self.path / "evaluation.safetensors"
        self.comparison_path = self.path / "comparison.json"
        self.card_path = self.path / "MODEL_CARD.md"
        self._held: tuple[int, int] | None = None  # which folder `open` holds, by device and number

    def check(
        self,
        recipe: Recipe,
        data: TaskFacts | None = None,
        split_of: Callable[[int], Split] | None = None,
        *,
        resume: bool,
    ) -> None:
        """Refuse a folder that holds another training or anything else, before anything is written or removed.

        Args:
            recipe: the settings to train with.
            data: what to train on; None if that is not known yet.
            split_of: the split of a seed; None if that is not known yet.
            resume: whether the folder may hold this training already.

        Raises:
            GraphjouleError: it is taken and `resume` is off, or what it holds was trained with other settings, on
                other data or with other splits, or is no training.
        """
        if not self.is_taken:
            check_free(self.path, _BEFORE_IT_BEGINS)
        if self._has_search:
            raise GraphjouleError(
                f"{self.path} holds a search for a model that has not ended; go on with it by "
                "`graphjoule auto --resume`, or choose another folder with `out`."
            )
        if not self.is_taken:
            return
        if not resume:
            raise GraphjouleError(
                f"{self.path} already holds a training; pass `resume=True` to continue it, or choose another folder "
                "with `out`."
            )
        before = self.about()
        if changed := before.recipe.differences(recipe):
            raise GraphjouleError(
                f"{self.path} was trained with other settings ({'; '.join(changed)}); choose another folder with `out`."
            )
        if before.data is not None and data is not None and (why := _other_data(before.data, data)) is not None:
            raise GraphjouleError(f"{self.path} was trained {why}; choose another folder with `out`.")
        if before.data is not None and data is not None and before.data.objective != data.objective:
            then, now = before.data.objective, data.objective
            options = [name for name, value in vars(then).items() if vars(now).get(name) != value]
            what = choices(options) if then.name == now.name else f"{then.name} then, {now.name} now"
            raise GraphjouleError(
                f"{self.path} was trained for another objective ({what}); choose another folder with `out`."
            )
        if split_of is None:
            return
        # Nodes that tested or validated, in any run that the folder has, must not train now.
        known = before.splits | {seed: record.split_sha256 for seed, record in self.records().items()}
        for seed, sha256 in known.items():
            if (split := split_of(seed)).sha256 != sha256:
                raise GraphjouleError(
                    f"{self.path} was trained with other nodes in the split {split.name!r} of seed {seed}: it has "
                    "changed since; choose another folder with `out`."
                )

    @property
    def is_taken(self) -> bool:
        """Whether a training has begun here."""
        return self._about_path.exists() or self.records_path.exists()

    @property
    def is_free(self) -> bool:
        """Whether a training may begin here."""
        return not self.is_taken and not self._has_search and not foreign_names(self.path, _BEFORE_IT_BEGINS)

    @property
    def _has_search(self) -> bool:
        """Whether a search for a model has begun here and not ended."""
        return (self.path / SEARCH_NAME / SUMMARY_NAME).is_file()

    def about(self) -> About:
        """What ``run.json`` says."""
        try:
            return About.model_validate_json(read_bytes(self._about_path))
        except (OSError, ValueError) as error:
            raise GraphjouleError(
                f"{self._about_path} is missing or damaged, so this folder cannot be read; train in another one."
            ) from error

    def model_path(self, seed: int) -> Path:
        """Where the model of a seed is."""
        return self.path / f"model-seed-{seed}.safetensors"

    def member(self, name: str) -> RunFolder:
        """The run folder of another model that predicts together with those of this one."""
        return RunFolder(self.path / "members" / name)

    def load_model(self, seed: int, model: GraphModel) -> GraphModel:
        """The saved model of a seed; `model` is one of its kind and gets the parameters."""
        return load_parameters(self.model_path(seed), model)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Create the folder and hold it: a second process is told so instead of spoiling the first one's files."""
        ensure_folder(self.path)
        with folder_lock(self.path, _LOCK_NAME) as is_ours:
            self._refuse_unless(is_ours)
            remove_temporaries(self.path)
            self._held = self._place
            try:
                yield
            finally:
                self._held = None

    @property
    def _place(self) -> tuple[int, int] | None:
        """Which folder is at the path now; None if there is none."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _check_in_place(self) -> None:
        """Refuse to write into another folder than the one that is held: it has nothing of this training."""
        if self._held is not None and self._place != self._held:
            raise GraphjouleError(
                f"{self.path} was deleted, moved or replaced while it was trained in, and nothing more is written; put "
                "the folder back and pass `resume=True`, or begin again in another one with `out`."
            )

    def check_unheld(self) -> None:
        """Refuse a folder that another process is training in now; nothing is made.

        `open` asks again: this is for who wants to know before work that takes long.
        """
        if (self.path / _LOCK_NAME).exists():
            with folder_lock(self.path, _LOCK_NAME) as is_ours:
                self._refuse_unless(is_ours)

    def _refuse_unless(self, is_ours: bool) -> None:
        if not is_ours:
            raise GraphjouleError(f"Another process is training in {self.path}; choose another folder.")

    def begin(
        self,
        recipe: Recipe,
        groups: list[list[int]],
        data: TaskFacts | None = None,
        splits: Mapping[int, str] | None = None,
        members: Sequence[str] | None = None,
    ) -> None:
        """Write ``run.json``; see `About` for what is given. Without `members` it keeps those that it has."""
        self._check_in_place()
        if members is None:
            members = self.about().members if self._about_path.exists() else []
        about = About(recipe=recipe, groups=groups, data=data, splits=dict(splits or {}), members=list(members))
        write_json(self._about_path, about.model_dump(mode="json"))

    def records(self) -> dict[int, Record]:
        """The records so far, by seed."""
        return {r.seed: r for r in read_records(self.records_path)} if self.records_path.exists() else {}

    def add(self, result: RunResult, record: Record, recipe: Recipe, data: TaskFacts) -> None:
        """Write one finished run: the model, then the record that makes it count."""
        self._check_in_place()
        save_model(
            self.model_path(result.seed),
            result.model,
            recipe,
            seed=result.seed,
            data=data,
            status=record.status,
            calibration=result.calibration,
        )
        append_record(self.records_path, record)

    def write_evaluation(self, evaluation: Evaluation) -> None:
        """Replace what reports need of the best run; written before its record, so that no run is missed."""
        self._check_in_place()
        write_evaluation(self.evaluation_path, evaluation)

    def evaluation(self) -> Evaluation | None:
        """What reports need of the best run; None in a folder that is older than the file."""
        return read_evaluation(self.evaluation_path) if self.evaluation_path.exists() else None

    def evaluated(self) -> tuple[int, float] | None:
        """Seed and validation score of the best run so far, None if there is none."""
        found = self.evaluation()
        return None if found is None else (found.seed, found.score)

    def write_comparison(self, comparison: Comparison) -> None:
        """Replace what the runs are worth beside simpler models."""
        self._check_in_place()
        write_comparison(self.comparison_path, comparison)

    def comparison(self) -> Comparison | None:
        """What the runs are worth beside simpler models; None if they, or not all of them, have been compared."""
        if not self.comparison_path.exists():
            return None
        found = read_comparison(self.comparison_path)
        run_ids = [record.run_id for record in self.records().values() if record.status == "done"]
        return found if sorted(found.run_ids) == sorted(run_ids) else None

    def write_card(self) -> None:
        """Write ``MODEL_CARD.md`` from the files that are here."""
        self._check_in_place()
        about, records, found = self.about(), list(self.records().values()), self.evaluation()
        card = model_card(
            about.recipe,
            records,
            about.data,
            evaluation=found,
            comparison=self.comparison(),
            members={name: self.member(name).about().recipe for name in about.members},
        )
        write_text(self.card_path, card)

    def save_checkpoint(self, state: dict[str, Tensor], recipe: Recipe, group: Sequence[int], seconds: float) -> None:
        """Replace the checkpoint by the state of a group of runs."""
        self._check_in_place()
        about = {"recipe": recipe.fingerprint(), "group": list(group), "seconds": seconds}
        known = {"threads": self.checkpoint_threads, "backend": self.checkpoint_backend}
        about |= {name: value for name, value in known.items() if value is not None}
        write_tensors(self._checkpoint_path, "checkpoint", state, about)

    def load_checkpoint(self, recipe: Recipe, group: Sequence[int]) -> tuple[dict[str, Tensor], float] | None:
        """The state of a group of runs and the seconds it took so far, if the checkpoint is of that group."""
        if not self._checkpoint_path.exists():
            return None
        try:
            state, about = read_tensors(self._checkpoint_path, "checkpoint")
            of, seeds, seconds = about["recipe"], about["group"], float(about["seconds"])
            threads, backend = about.get("threads"), about.get("backend")  # older checkpoints do not say
            if (
                not (backend is None or isinstance(backend, str))
                or not 0 <= seconds < math.inf
                or not (threads is None or (type(threads) is int and threads > 0))
            ):
                raise ValueError
            state = _state_of_any_format(state)
        except (GraphjouleError, KeyError, TypeError, ValueError, RuntimeError) as error:
            why = f"{error} " if isinstance(error, GraphjouleError) else f"{self._checkpoint_path} is damaged. "
            raise GraphjouleError(f"{why}{self._without_checkpoint}") from error
        if of != recipe.fingerprint():
            raise GraphjouleError(f"{self._checkpoint_path} is of another training; choose another folder with `out`.")
        self.checkpoint_threads, self.checkpoint_backend = threads, backend
        return (state, seconds) if seeds == list(group) else None

    def check_state(self, state: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> None:
        """Refuse a checkpoint that does not fit the runs it is for.

        Args:
            state: what the checkpoint holds.
            like: the state of these runs at their beginning; a checkpoint may hold fewer of them.
        """
        rows = state["seed"].numel() if "seed" in state else 0
        fits = rows > 0 and all(name in state for name in like if not name.startswith(_MAY_BE_MISSING))
        for name, value in state.items():
            if name.startswith("draws."):
                fits = fits and _is_generator(name.removeprefix("draws."), value)
            else:
                shape, dtype = (like[name].shape[1:], like[name].dtype) if name in like else (None, None)
                fits = fits and shape is not None and value.shape == (rows, *shape) and value.dtype == dtype
        seeds = like["seed"].tolist()
        fits = fits and set(state["seed"].tolist()) <= set(seeds)
        if fits:  # other nodes than those of the split would be trained on
            order = [seeds.index(seed) for seed in state["seed"].tolist()]
            fits = all(state[name].equal(like[name][order].cpu()) for name in _OF_SPLITS if name in state)
        if not fits or not 0 <= int(state["epoch"].min()) <= int(state["epoch"].max()) <= like["curve"].size(1):
            raise GraphjouleError(
                f"{self._checkpoint_path} does not fit the runs that it is for. {self._without_checkpoint}"
            )

    @property
    def _without_checkpoint(self) -> str:
        """What helps where the checkpoint cannot be used."""
        return (
            f"Delete {self._checkpoint_path}, and the same call goes on: runs that are recorded are kept, the others "
            "begin again at their first epoch."
        )

    def drop_checkpoint(self) -> None:
        """Remove the checkpoint once its runs are recorded."""
        self._checkpoint_path.unlink(missing_ok=True)


def _other_data(then: TaskFacts, now: TaskFacts) -> str | None:
    """What is different about the data of a training and of a call that wants to go on with it; None if nothing is."""
    if then.sha256 == now.sha256:
        return None
    files = {file.role: file for file in ([] if then.source is None else then.source.files)}
    both = [(files[file.role], file) for file in ([] if now.source is None else now.source.files) if file.role in files]
    if changed := [Path(new.path).name for old, new in both if old.sha256 != new.sha256]:
        return f"on other data: {' and '.join(changed)} {'has' if len(changed) == 1 else 'have'} changed since"
    old, new = ({} if each.source is None else _reading_of(each.source) for each in (then, now))
    if options := [f"{name} was {old[name]}, and is {new[name]} now" for name in old if old[name] != new.get(name)]:
        return f"on these files with other options: {'; '.join(options)}"
    if then.objective != now.objective:
        return None  # which the check of the objective says
    return f"on other data: {now.name} has changed since"


def _reading_of(source: Source) -> dict[str, str]:
    """How the user's files were read, by the names of the options that say it."""
    if (columns := source.columns) is None:
        return {}
    names = ([column.name for column in columns.numbers], [column.name for column in columns.categories])
    features = [*names[0], *names[1], *(column.name for column in columns.texts)]
    said = {
        "label": ",".join(columns.labels),
        "features": ",".join(features),
        "one-hot": ",".join(names[1]),
        **{name: getattr(columns, name) for name in ("id", "source", "target", "weight")},
        "edge-type": columns.edge_type,
        "types": "separate" if columns.types is not None else "merged",
        "direction": columns.direction,
        "knn": columns.knn,
    }
    return {name: "not given" if value in (None, "") else str(value) for name, value in said.items()}


def _is_generator(kind: str, value: Tensor) -> bool:
    """Whether a tensor is the state of a generator of random numbers on a kind of device that is here."""
    try:
        torch.Generator(kind).set_state(value[0])
    except (RuntimeError, TypeError, IndexError):
        return False
    return True


def _state_of_any_format(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A checkpoint's tensors by the names they have now; format 1 knew one metric and one term."""
    if "selection.best" in state:
        return state
    state = dict(state)
    val = [state.pop(f"selection.{name}") for name in ("val_loss", "val_accuracy")]
    if "multipliers" in state:
        state["states.energy"] = state.pop("multipliers")
    return state | {"selection.best": torch.stack(val, dim=1)}
