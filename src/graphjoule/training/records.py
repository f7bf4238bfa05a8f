"""Records: one JSON line per run, appended once and never changed. Tables are views of them."""

import hashlib
import json
import math
import os
import re
import secrets
import statistics
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from graphjoule.errors import GraphjouleError, choices
from graphjoule.files import json_text, lock_itself, open_file, reason, sync_folder, without_nan
from graphjoule.tasks.metrics import Metric
from graphjoule.tasks.objective import OBJECTIVES, Classification
from graphjoule.training.provenance import versions
from graphjoule.training.recipe import Recipe

_FLAGS: Final = getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)  # binary: Windows would write \r\n
MOST_BYTES_OF_LINE: Final = 2**26
FORMAT: Final = 3
"""Of the records that are written. Format 2 had no `protocol` and did not say whether the code was changed; format 1
knew classification alone. Both are read."""
_FORMATS: Final = (1, 2, FORMAT)


def _round(value: Any) -> Any:
    """Six significant digits, more than a curve is read with: the curves are most of the file."""
    try:
        return float(f"{value:.6g}") if math.isfinite(value) else None
    except (TypeError, OverflowError):  # None, or no number of a curve: the validation that follows says so
        return value


_Number = Annotated[float, Field(allow_inf_nan=False)] | None
_Count = Annotated[int, Field(lt=2**64, gt=-(2**64))]  # one of hundreds of digits cannot be divided


class _Fields(BaseModel):
    """The fields of a `Record` as they are in a file of ours, where a million of them are read by these types alone."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    format: Literal[2, 3] = FORMAT
    run_id: str
    recipe: dict[str, Any]
    model: str
    dataset: str
    num_layers: _Count
    seed: _Count
    split: str
    split_sha256: str
    task_sha256: str | None = None
    objective: str = "classification"
    status: Literal["done", "failed"]
    failure: str | None = None
    protocol: str | None = None
    versions: dict[str, str] = Field(default_factory=versions)
    device: str
    backend: str | None = None
    runs_at_once: _Count = Field(ge=1)
    seconds: float = Field(ge=0, le=1e15, allow_inf_nan=False)
    peak_bytes: _Count | None = None
    curve: dict[str, list[_Number]]
    epochs_run: _Count = Field(ge=0)
    selected_epoch: _Count | None = None
    val: dict[str, _Number] = {}
    test: dict[str, _Number] = {}
    created: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))


class Record(_Fields):
    """The facts of one run.

    Attributes:
        format: Version of this list of fields.
        run_id: What makes the run this run, see `run_id`.
        recipe: All settings, with their sources.
        model: The recipe's model, here and below once more to be found by.
        dataset: The recipe's dataset.
        num_layers: The recipe's depth.
        seed: The run's seed.
        split: The recipe's split rule.
        split_sha256: Hash of the split itself.
        task_sha256: Hash of features, graph and targets; None in records that are older than the field.
        objective: A key of `OBJECTIVES`: what was asked, and so which metrics there are.
        status: "done", or "failed" when the loss was no longer finite.
        failure: Why it failed, or None.
        protocol: The protocol it was run under, such as "table1:" and a hash, see `graphjoule.studies.Protocol`; None
            for a run of no study and in records that are older than the field.
        versions: Which code made it, see `graphjoule.training.versions`.
        device: In words.
        backend: Which implementation of the hot loops ran; None in records that are older than the field.
        runs_at_once: How many runs were trained together in one program.
        seconds: Wall-clock time of that program, divided among the runs it was training: the run's own share.
        peak_bytes: The program's peak memory on the device, None where it is not known.
        curve: `train_loss`, `val_loss` and `val_METRIC` per epoch, six significant digits.
        epochs_run: Epochs until the run stopped.
        selected_epoch: The epoch that validation chose, None if it never came to that.
        val: Loss and metrics at the selected epoch by name; shares are in [0, 1].
        test: The same on the test nodes, read once; empty for a run that is done on a split without test nodes.
        created: When the record was made, UTC.
    """

    @classmethod
    def of(cls, recipe: Recipe, *, seed: int, split_sha256: str, failure: str | None = None, **measured: Any) -> Self:
        """The record of a run, failed if there is a `failure`; `measured` are the fields that only the run knows."""
        return cls(
            run_id=run_id(recipe, seed, split_sha256),
            recipe=recipe.model_dump(),
            model=recipe.model.name,
            dataset=recipe.data.name,
            num_layers=recipe.model.num_layers,
            split=recipe.data.split,
            seed=seed,
            split_sha256=split_sha256,
            status="failed" if failure else "done",
            failure=failure,
            **measured,
        )

    @property
    def device_kind(self) -> str:
        """The device without what does not change the arithmetic: "cpu (2 threads)" is "cpu"."""
        return re.sub(r" \(\d+ threads?\)", "", self.device)

    @property
    def identity(self) -> tuple[str, str | None, str]:
        """What two records must agree in to be of one run: `run_id`, backend and kind of device."""
        return self.run_id, self.backend, self.device_kind

    @property
    def metric(self) -> Metric:
        """The metric that tables and pages show: the one that selected the epoch, or the objective's first."""
        train = self.recipe.get("train")
        select_on = train.get("select_on") if isinstance(train, dict) else None
        metrics = OBJECTIVES[self.objective].metrics
        return next((metric for metric in metrics if metric.name == select_on), metrics[0])

    @property
    def val_score(self) -> float | None:
        """The value of `metric` on the validation nodes at the selected epoch."""
        return self.val.get(self.metric.name)

    @property
    def test_score(self) -> float | None:
        """The value of `metric` on the test nodes; None where there are none."""
        return self.test.get(self.metric.name)

    @field_validator("recipe", "val", "test", mode="before")
    @classmethod
    def _without_nan(cls, found: Any) -> Any:
        """What JSON cannot say is None from the start, so that a record equals what is read back."""
        return without_nan(found)

    @field_validator("curve", mode="before")
    @classmethod
    def _rounded(cls, curve: Any) -> Any:
        if not isinstance(curve, dict):
            return curve
        return {
            name: [_round(value) for value in values] if isinstance(values, list | tuple) else values
            for name, values in curve.items()
        }

    @model_validator(mode="before")
    @classmethod
    def _from_format_1(cls, fields: Any) -> Any:
        if not isinstance(fields, dict) or fields.get("format", FORMAT) != 1:
            return fields
        fields = fields | {"format": 2}
        val = {"loss": fields.pop("val_loss", None), "accuracy": fields.pop("val_accuracy", None)}
        test = {"accuracy": fields.pop("test_accuracy", None)}
        for name, scores in (("val", val), ("test", test)):
            fields[name] = {key: value for key, value in scores.items() if value is not None}
        return fields

    @model_validator(mode="after")
    def _says_its_result(self) -> Self:
        self._check_result()
        return self

    def _check_result(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective is {self.objective!r}; the choices are: {choices(OBJECTIVES)}")
        if self.status == "failed" and not self.failure:
            raise ValueError("a failed run says why in `failure`")
        headline, shares = _checked_metrics(self.objective)
        if self.status == "done" and (self.failure or self.val.get(headline) is None):
            raise ValueError(f"a run that is done has a validation {headline} and no failure")
        for scores in (self.val, self.test):
            for name in shares:
                if (value := scores.get(name)) is not None and not 0 <= value <= 1:
                    raise ValueError(f"{name} is {value}; it must be from 0 to 1")


@cache
def _checked_metrics(objective: str) -> tuple[str, list[str]]:
    """The metric that every run that is done has, and those that are shares."""
    metrics = OBJECTIVES[objective].metrics
    return metrics[0].name, [metric.name for metric in metrics if metric.is_share]


def run_id(recipe: Recipe, seed: int, split_sha256: str) -> str:
    """The name of a run: a hash of its recipe (and so its dataset), seed and split, the same on every machine."""
    return hashlib.sha256(f"{recipe.fingerprint()} {seed} {split_sha256}".encode()).hexdigest()[:16]


def append_record(path: str | os.PathLike[str], record: Record) -> None:
    """Append a record as one line, whole or not at all, whoever else is writing or reading.

    Args:
        path: A `.jsonl` file, made if there is none; its folder must exist. A symbolic link is refused: what it leads
            to is somebody else's.
        record: The record.
    """
    path = Path(path)
    if path.suffix == ".gz":
        raise GraphjouleError(f"Records cannot be appended to the compressed file {path}: give a .jsonl file.")
    line = json_text(record.model_dump()).encode() + b"\n"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | _FLAGS, 0o666)
        try:
            # Where there are no locks, one O_APPEND write is all the protection there is.
            _append_line(descriptor, line, locked=lock_itself(descriptor, wait=True) is True)
        finally:
            os.close(descriptor)  # this lets go of the lock too
        sync_folder(path.parent)
    except OSError as error:
        why = "it is a symbolic link; put a file in its place" if path.is_symlink() else reason(error)
        raise GraphjouleError(f"Cannot append a record to {path}: {why}.") from error


def _append_line(descriptor: int, line: bytes, *, locked: bool) -> None:
    size = os.lseek(descriptor, 0, os.SEEK_END)
    if size:
        os.lseek(descriptor, -1, os.SEEK_END)
        if os.read(descriptor, 1) != b"\n":  # a power cut tore the last line: it must not take this one with it
            line = b"\n" + line
    try:
        while line:
            line = line[os.write(descriptor, line) :]
        os.fsync(descriptor)
    except OSError:
        if locked:  # a full disk: take the torn line back; without the lock it might be another's
            os.ftruncate(descriptor, size)
        raise


def read_records(path: str | os.PathLike[str]) -> Iterator[Record]:
    """The records of a `.jsonl` or `.jsonl.gz` file, in order, also while another process is appending to it.

    A last line that is still being written is left out; a broken line before it is left out with a warning.

    Raises:
        GraphjouleError: The file cannot be read, or a record has a format this version does not know.
    """
    path = Path(path)
    try:
        with open_file(path) as lines:
            for number, line in enumerate(iter(partial(lines.readline, MOST_BYTES_OF_LINE), b""), start=1):
                if len(line) == MOST_BYTES_OF_LINE:  # a few bytes of a compressed file may be gigabytes
                    raise GraphjouleError(
                        f"{path}, line {number} is longer than any record; expected a file of records."
                    )
                if line.isspace():
                    continue
                if (record := _parse_quickly(line) or _parse(line, f"{path}, line {number}")) is not None:
                    yield record
                elif not line.endswith(b"\n"):  # stop: should its rest arrive now, it would look like a broken line
                    return
                else:
                    warnings.warn(f"{path}, line {number} is not a whole record and is left out.", stacklevel=2)
    except (OSError, EOFError, zlib.error) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise GraphjouleError(f"Cannot read records from {path}: {why}.") from error


# A line as `append_record` writes it. Most of it is the recipe, which the runs of a study share: it is read once.
_BEGINNING = re.compile(rb'\{"format": [23], "run_id": "[0-9a-f]+", "recipe": (?=\{)')
_END = b'}, "model": "'
_ALL_FIELDS = set(Record.model_fields)
_FIELDS_OF = {2: _ALL_FIELDS - {"protocol"}, FORMAT: _ALL_FIELDS}
_PLACE = secrets.token_hex(8)  # stands for the recipe in a line; no file knows it


@lru_cache(maxsize=4096)
def _read_recipe(text: bytes) -> dict[str, Any]:
    recipe = json.loads(text)
    if not isinstance(recipe, dict) or b"\\u" in text:  # perhaps half a character
        raise ValueError
    return dict(without_nan(recipe))


@lru_cache(maxsize=4096)
def _read_versions(items: tuple[tuple[str, str], ...]) -> dict[str, str]:
    return dict(items)


def _parse_quickly(line: bytes) -> Record | None:
    """The record of a line of our own; None for any other line, which `_parse` reads or refuses.

    Runs that have the same recipe, versions and fields share these objects, which are most of a record.
    """
    found = _BEGINNING.match(line)
    end = line.find(_END, found.end()) if found else -1
    if found is None or end < 0:
        return None
    record = Record.__new__(Record)
    try:
        # From JSON into the record at once: a third of the time of `Record.model_validate(json.loads(line))`.
        rest = b'%b{"%b": 0%b' % (line[: found.end()], _PLACE.encode(), line[end:])
        _Fields.__pydantic_validator__.validate_json(rest, self_instance=record)
        fields = record.__dict__
        if (
            _PLACE not in fields["recipe"] or record.model_fields_set != _FIELDS_OF[record.format]
        ):  # it has two recipes, or something is missing
            return None
        fields["recipe"] = _read_recipe(line[found.end() : end + 1])
        fields["versions"] = _read_versions(tuple(fields["versions"].items()))
        object.__setattr__(record, "__pydantic_fields_set__", _ALL_FIELDS)
        record._check_result()
    except (ValueError, RecursionError):
        return None
    return record


def _parse(line: bytes, where: str) -> Record | None:
    """The record of a line, None if it is not a whole one."""
    try:
        fields = json.loads(line.decode())
        if rb"\ud" in line.lower():  # half a character cannot be written to any page
            json.dumps(fields, ensure_ascii=False).encode()
        if isinstance(fields, dict) and fields.get("format", FORMAT) not in _FORMATS:
            raise GraphjouleError(
                f"{where} has format {fields['format']!r}; this graphjoule reads formats 1 to {FORMAT}."
            )
        return Record.model_validate(fields)
    except GraphjouleError:
        raise
    except (ValueError, RecursionError):  # not JSON, no record, an endless number, or brackets in brackets
        return None


def sample_std(values: Sequence[float]) -> float | None:
    """The sample standard deviation (n - 1); None for fewer than two values.

    >>> sample_std([1.0, 3.0]), sample_std([1.0])
    (1.4142135623730951, None)
    """
    if len(values) < 2:
        return None
    largest = max(map(abs, values))
    if largest > 1e150:  # the squares would be infinite
        return largest * float(np.std(np.array(values) / largest, ddof=1))
    if len(values) > 10_000:  # the exact sums of `statistics` take 5 µs a value
        return float(np.std(values, ddof=1))
    return statistics.stdev(values)


def mean(values: Sequence[float]) -> float:
    """The mean of some numbers, also where their sum would be infinite."""
    try:
        return statistics.fmean(values)
    except OverflowError:
        return math.fsum(value / len(values) for value in values)


@dataclass(frozen=True)
class Summary:
    """What several runs of a recipe come to, by the metric of their objective.

    Attributes:
        metric: the metric.
        test_mean: Its mean over the test nodes of the runs that are done; None if none is, or none has test nodes.
        test_std: Their sample standard deviation (n - 1); None for fewer than two.
        val_mean: Its mean over the validation nodes of the runs that are done.
        val_std: Their sample standard deviation; None for fewer than two.
        n: How many runs are done.
        num_failed: How many failed; they are in no mean.
        seconds: Wall-clock time of all runs together.
    """

    metric: Metric
    test_mean: float | None
    test_std: float | None
    val_mean: float | None
    val_std: float | None
    n: int
    num_failed: int
    seconds: float


def summarise(records: Iterable[Record]) -> Summary:
    """Mean and spread of runs of one objective, each counted as often as it is given."""
    records = list(records)
    done = [record for record in records if record.status == "done"]
    # Runs of a recipe share its dict, so that few of a million are looked at.
    kinds = {(record.objective, id(record.recipe)): record for record in records}.values()
    if len({(record.objective, record.metric.name) for record in kinds}) > 1:
        raise GraphjouleError("These runs have different objectives or metrics, so there is no mean over them.")
    metric = records[0].metric if records else Classification.metrics[0]
    test = [score for record in done if (score := record.test.get(metric.name)) is not None]
    val = [score for record in done if (score := record.val.get(metric.name)) is not None]
    return Summary(
        metric=metric,
        test_mean=mean(test) if test else None,
        test_std=sample_std(test),
        val_mean=mean(val) if val else None,
        val_std=sample_std(val),
        n=len(done),
        num_failed=len(records) - len(done),
        seconds=math.fsum(record.seconds for record in records),
    )
