"""Whether records are what they say: hashes, seeds, selection, code and protocol, checked without training anything."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import pairwise, zip_longest
from math import inf, isclose
from pathlib import Path
from typing import Final

from graphjoule.errors import GraphjouleError, counted
from graphjoule.files import json_text, parse_json, read_bytes, reason
from graphjoule.studies.collection import differences, record_files
from graphjoule.studies.protocol import Protocol
from graphjoule.tasks.datasets import DATASETS
from graphjoule.tasks.objective import OBJECTIVES
from graphjoule.training.provenance import commit_of_source, source_of_commit, source_sha256
from graphjoule.training.recipe import Recipe, recipe_and_fingerprint
from graphjoule.training.records import FORMAT, Record, read_records, run_id

SUMS: Final = "SHA256SUMS"
"""A file with a line ``HASH  PATH`` for every file of its folder, as ``sha256sum`` writes it."""
PROTOCOLS: Final = "*.protocol.json"
_MOST_COMPARED: Final = 2_000  # letters of a line, word by word, which takes the square of their number
_MOST_DAMAGED: Final = 10  # lines that are named one by one in a file without a record
_DIGITS: Final = 5  # of a curve's numbers, which are rounded to six


@dataclass
class Check:
    """One kind of thing that was checked.

    Attributes:
        name: what, in words.
        count: how many of them.
        problems: a sentence for each that is not as it says.
        notes: what could not be checked, and what a reader should know.
    """

    name: str
    count: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Placed:
    """A record and where it stands.

    Attributes:
        record: the record.
        place: file and number of the line.
        recipe: its settings; None where this version does not know them.
    """

    record: Record
    place: str
    recipe: Recipe | None

    @property
    def is_own_data(self) -> bool:
        """Whether it is of a user's own files: two of these may have one name, as two folders' nodes.csv."""
        return self.record.dataset not in DATASETS

    @property
    def file(self) -> str:
        """Where it stands, without the line."""
        return self.place.rpartition(", ")[0]


def read_placed(paths: Iterable[Path]) -> tuple[list[Placed], Check]:
    """All records below some paths, and whether every line is a whole record whose name is that of its settings."""
    check, found = Check("records are whole and their names are hashes of their settings"), list[Placed]()
    unknown: Counter[str] = Counter()
    for path in record_files(paths):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for number, record in enumerate(read_records(path), start=1):
                place = f"{path}, record {number}"
                try:
                    recipe, _ = recipe_and_fingerprint(json_text(record.recipe))
                except GraphjouleError:
                    unknown[str(path)] += 1
                    found.append(Placed(record, place, None))
                    continue
                found.append(Placed(record, place, recipe))
                if run_id(recipe, record.seed, record.split_sha256) != record.run_id:
                    check.problems.append(f"{place}: its run_id is not that of its settings, seed and split.")
                named = (record.model, record.dataset, record.num_layers, record.split)
                if named != (recipe.model.name, recipe.data.name, recipe.model.num_layers, recipe.data.split):
                    check.problems.append(f"{place}: model, dataset, depth or split are not those of its recipe.")
        if len(said) > _MOST_DAMAGED and not any(placed.file == str(path) for placed in found):
            check.problems.append(f"{path} holds no record of a run: none of its {len(said):,} lines is a whole one.")
            continue
        check.problems += [str(warning.message) for warning in said]
    check.notes += [f"{path}: {n} records have settings this version does not know." for path, n in unknown.items()]
    check.count = len(found)
    return found, check


def check_sums(paths: Iterable[Path]) -> Check:
    """Every file that a `SHA256SUMS` names has the hash that stands there, and no file of records is without one."""
    check = Check(f"files have the hashes of their {SUMS}")
    listed: set[Path] = set()
    folders = [path for path in paths if path.is_dir()]
    for sums in (file for folder in folders for file in sorted(folder.rglob(SUMS))):
        for line in read_bytes(sums).decode(errors="replace").splitlines():
            expected, _, name = line.partition("  ")
            file = sums.parent / name
            listed.add(file)
            check.count += 1
            try:
                if file.exists() and not file.is_file():  # a pipe or a device would be read for ever
                    check.problems.append(f"{file}: is not a file; {sums} lists it.")
                    continue
                found = hashlib.sha256(file.read_bytes()).hexdigest()
            except ValueError:
                check.problems.append(f"{name!r:.200}: is no name of a file; {sums} lists it.")
                continue
            except OSError as error:
                check.problems.append(f"{file}: {reason(error)}; {sums} lists it.")
                continue
            if found != expected:
                check.problems.append(f"{file}: its hash is {found[:12]}..., {sums} says {expected[:12]}...")
    if listed:
        lost = [path for path in record_files(folders) if path not in listed]
        check.problems += [f"{path}: is in no {SUMS}." for path in lost]
    else:
        check.notes.append(f"No {SUMS} is here, so files are not held against hashes.")
    return check


def check_conflicts(placed: Sequence[Placed]) -> Check:
    """No run is twice in a file, and no two records of one run differ: settings, seed, split, backend and device."""
    check = Check("no run is twice in a file, and no two records of one run differ")
    first: dict[object, Placed] = {}
    here: dict[object, Placed] = {}
    unclear = 0
    for one in placed:
        twin = here.setdefault((one.record.identity, one.file), one)
        if twin is not one:
            check.problems.append(f"{one.place} is of the same run as {twin.place.rpartition(', ')[2]} of that file.")
        run = (one.record.identity, one.record.task_sha256 if one.is_own_data else None)
        before = first.setdefault(run, one)
        check.count += before is one
        if differing := differences(before.record, one.record):
            if one.record.backend is None:
                unclear += 1
            else:
                what = ", ".join(name for name, *_ in differing)
                check.problems.append(f"{one.place} and {before.place} are of one run and differ in {what}.")
    if unclear:
        check.notes.append(
            f"{unclear} runs have several records that differ and do not name their backend; formats before {FORMAT} "
            "had none for most runs. They cannot be told apart but by their files."
        )
    return check


def check_data(placed: Sequence[Placed]) -> Check:
    """A dataset has one hash, and a split of one rule and seed has one."""
    check = Check("a dataset has one hash, and so has a split of one rule and seed")
    known: dict[tuple[object, ...], tuple[str, str]] = {}
    for one in placed:
        record, data = one.record, one.recipe.data if one.recipe else None
        if data is None:
            continue
        # A search hides the test labels and the test nodes, so its data and its split have hashes of their own.
        is_search = not record.test and record.status == "done"
        whose = (record.dataset, "without its test labels") if is_search else (record.dataset,)
        facts: list[tuple[tuple[object, ...], str | None]] = [(whose, record.task_sha256)]
        if record.test:
            drawn = record.seed if data.split_seed is None else data.split_seed
            is_drawn = record.split.startswith(("per-class", "stratified", "random"))
            facts.append(((record.dataset, record.split, drawn if is_drawn else None), record.split_sha256))
        for what, value in facts:
            if value:
                scope = (data.normalize_features, one.file if one.is_own_data else None)
                expected, place = known.setdefault((*what, *scope), (value, one.place))
                if value != expected:
                    named = ", ".join(str(word) for word in what if word is not None)
                    check.problems.append(f"{one.place}: {named} has another hash than in {place}.")
    check.count = len(known)
    return check


def check_selection(placed: Sequence[Placed]) -> Check:
    """The selected epoch is the best of its curve by the rule of its recipe, and the record has its scores."""
    check = Check("the selected epoch is the best of its curve, and its scores are the record's")
    without = 0
    for one in placed:
        record = one.record
        if record.status != "done" or record.selected_epoch is None or one.recipe is None:
            continue
        rule = one.recipe.train.select_on
        curve = record.curve.get(f"val_{rule}")
        if not curve:
            without += 1
            continue
        check.count += 1
        higher = {metric.name for metric in OBJECTIVES[record.objective].metrics if metric.is_higher_better}
        scores = [inf if value is None else -value if rule in higher else value for value in curve]
        if record.selected_epoch >= len(scores) or len(scores) != record.epochs_run:
            check.problems.append(f"{one.place}: its curve has {len(scores)} epochs, it ran {record.epochs_run}.")
            continue
        chosen, best = scores[record.selected_epoch], min(scores)
        if not _is_close(chosen, best):
            check.problems.append(f"{one.place}: epoch {record.selected_epoch} is not the best of its curve by {rule}.")
        for name, value in record.val.items():
            of_epochs = record.curve.get(f"val_{name}") or []
            at = of_epochs[record.selected_epoch] if record.selected_epoch < len(of_epochs) else None
            if value is not None and at is not None and not _is_close(value, at):
                check.problems.append(f"{one.place}: its validation {name} is {value}, its curve has {at}.")
    if without:
        check.notes.append(f"{without} records have no curve.")
    return check


def _is_close(one: float, other: float) -> bool:
    return one == other or isclose(one, other, rel_tol=10.0**-_DIGITS, abs_tol=10.0**-_DIGITS)


def check_code(placed: Sequence[Placed]) -> Check:
    """Every record says which code made it, and no file of that code was changed."""
    check, kinds = Check("records say which code made them, and it was as committed"), Counter[tuple[str, ...]]()
    for one in placed:
        versions = one.record.versions
        kinds[tuple(versions.get(name, "") for name in ("graphjoule", "commit", "tree", "source", "torch"))] += 1
        if one.record.format == FORMAT and "source" not in versions:
            check.problems.append(f"{one.place}: does not say the hash of the code that made it.")
        if versions.get("tree") == "changed" and commit_of_source(versions.get("source", "")) is None:
            check.problems.append(f"{one.place}: made by files that differ from the commit it names.")
    check.count = len(placed)
    for (version, commit, tree, source, torch), number in kinds.most_common():
        committed = source_of_commit(commit) if commit and source and tree != "changed" else None
        if committed not in (None, source):
            check.problems.append(f"{number} records name commit {commit[:12]}, whose files have another hash.")
        same = " (the files that are here)" if source == source_sha256() else ""
        code = f"files {source[:12]}{same}" if source else "files not recorded"
        if tree == "changed" and (other := commit_of_source(source)):
            code += f", which are those of commit {other[:12]}"
        check.notes.append(
            f"{number} records: graphjoule {version}, commit {commit[:12] or 'not recorded'}, {code}, torch {torch}."
        )
    return check


def check_protocols(paths: Iterable[Path], placed: Sequence[Placed], known: Mapping[str, Protocol]) -> Check:
    """Every protocol that is cited is here, word for word, and the epoch was selected as it says.

    Args:
        paths: folders with files that hold a protocol, `PROTOCOLS`.
        placed: the records.
        known: protocols of studies that are at hand, by the study's name.
    """
    check = Check("the protocols that records cite are here, and the records keep to them")
    found = {protocol.cited(name, {}): protocol for name, protocol in known.items()}
    for file in (file for path in paths if path.is_dir() for file in sorted(path.rglob(PROTOCOLS))):
        try:
            content = parse_json(read_bytes(file))
            protocol = Protocol.model_validate(content["protocol"])
            found[protocol.cited(content["study"], {})] = protocol
            if protocol.sha256 != content["sha256"]:
                check.problems.append(f"{file}: its hash is not that of its words.")
        except (OSError, ValueError, KeyError, TypeError) as error:
            check.problems.append(f"{file}: is not a protocol: {type(error).__name__}.")
    missing: Counter[str] = Counter()
    silent = 0
    for one in placed:
        if one.record.protocol is None:
            silent += 1
            continue
        check.count += 1
        cited, _, changed = one.record.protocol.partition(", but with ")
        if cited not in found:
            missing[cited] += 1
        elif one.recipe is not None and "select_on" not in changed:
            rule = found[cited].rule_of(one.record.dataset)
            if rule not in (None, one.recipe.train.select_on):
                check.problems.append(f"{one.place}: selected by {one.recipe.train.select_on}, {cited} says {rule}.")
    check.problems += [f"{number} records cite {cited}, which is not here." for cited, number in missing.items()]
    if silent:
        check.notes.append(f"{silent} records cite no protocol: they are older than it, or of no study.")
    return check


def check_seeds(placed: Sequence[Placed]) -> Check:
    """The runs of a recipe have each seed once, without a gap."""
    check, cells = Check("the runs of a recipe have seeds without a gap"), dict[str, tuple[Record, set[int]]]()
    for one in placed:
        if one.recipe is not None:
            cells.setdefault(one.recipe.fingerprint(), (one.record, set()))[1].add(one.record.seed)
    for record, seeds in cells.values():
        gaps = [(one + 1, two - 1) for one, two in pairwise(sorted(seeds)) if two - one > 1]
        if min(seeds) == 0 and gaps:
            missing = ", ".join(str(one) if one == two else f"{one} to {two}" for one, two in gaps)
            named = f"{record.model}, {record.num_layers} layers, {record.dataset}"
            check.problems.append(f"{named} has no record of seed {missing}, and of later ones.")
    check.count = len(cells)
    sizes = Counter(len(seeds) for _, seeds in cells.values())
    check.notes.append(f"Runs per recipe: {', '.join(f'{n} of {size}' for size, n in sorted(sizes.items()))}.")
    return check


def compare_texts(files: Mapping[str, str], read: Callable[[str], str | None], name: str) -> Check:
    """Files as they are beside what the records make of them; every line that differs is named with its digits.

    Args:
        files: what they should hold, by name.
        read: what one holds; None where it is not there.
        name: of the check.
    """
    check = Check(name, len(files))
    for file, expected in files.items():
        if (found := read(file)) is None:
            check.problems.append(f"{file}: is not there.")
            continue
        for number, (is_, should) in enumerate(zip_longest(found.splitlines(), expected.splitlines()), start=1):
            if is_ != should:
                check.problems.append(f"{file}, line {number}: {_difference(is_, should)}")
    return check


def _difference(is_: str | None, should: str | None) -> str:
    """The words of a line that differ.

    >>> _difference("EGNN has 85.57 and 3", "EGNN has 85.58 and 3")
    'has "85.57", the records give "85.58".'
    """
    if is_ is None or should is None:
        return "is too much." if should is None else "is missing."
    is_, should = is_[:_MOST_COMPARED], should[:_MOST_COMPARED]
    if is_ == should:
        return "differs after thousands of letters."
    mine, theirs = (re.findall(r"\S+\s*", line) for line in (is_, should))
    if mine == theirs:
        return "differs in the blanks before its first word."
    steps = [step for step in SequenceMatcher(None, mine, theirs, autojunk=False).get_opcodes() if step[0] != "equal"]
    ours, given = ("".join(mine[steps[0][1] : steps[-1][2]]), "".join(theirs[steps[0][3] : steps[-1][4]]))
    return f'has "{ours.strip()[:80]}", the records give "{given.strip()[:80]}".'


def is_page(text: bytes) -> bool:
    """Whether a file begins as `page_of` writes one."""
    return re.match(rb"# (Verified|Not verified: \d+ problems)\n\n- \*\*(ok|\d+ problems)\*\* \(", text) is not None


def page_of(checks: Collection[Check]) -> str:
    """One page on all checks, in Markdown."""
    problems = sum(len(check.problems) for check in checks)
    lines = [f"# Not verified: {counted(problems, 'problem')}" if problems else "# Verified", ""]
    for check in checks:
        state = counted(len(check.problems), "problem") if check.problems else "ok"
        lines += [f"- **{state}** ({check.count:,}): {check.name}."]
        lines += [f"  - PROBLEM: {problem}" for problem in check.problems]
        lines += [f"  - {note}" for note in check.notes]
    return "\n".join(lines) + "\n"
