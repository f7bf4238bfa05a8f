"""Where a command writes: names for run folders, and what is refused before anything is computed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import typer

from graphjoule.errors import GraphjouleError
from graphjoule.files import foreign_names
from graphjoule.training.defaults import with_choices_of
from graphjoule.training.recipe import Recipe


def run_name(recipe: Recipe) -> str:
    """A name after the data, the model and the depth, fit for a folder.

    >>> from graphjoule.training.recipe import load_recipe
    >>> run_name(load_recipe("egnn", "cora", 64)), run_name(load_recipe("gcn", "data/my nodes.csv", 2))
    ('cora-egnn-64', 'my-nodes-gcn-2')
    """
    return f"{data_name(recipe.data.name)}-{recipe.model.name}-{recipe.model.num_layers}"


def data_name(name: str) -> str:
    """The name of some data, fit for a folder."""
    return re.sub(r"[^\w-]+", "-", Path(name).stem)


def default_folder(recipe: Recipe, *, resume: bool) -> Path:
    """A folder under ``runs/`` named after the recipe: a free one, or to `resume` the newest with its settings.

    A folder that was killed before it could say its settings counts as one with them.
    """
    from graphjoule.training.folder import RunFolder

    def is_of_recipe(path: Path) -> bool:
        folder = RunFolder(path)
        if not folder.is_taken:
            return folder.is_free
        stored = folder.about().recipe
        return not stored.differences(with_choices_of(recipe, stored))

    return named_folder(run_name(recipe), is_of_recipe, resume=resume)


def named_folder(name: str, is_ours: Callable[[Path], bool], *, resume: bool) -> Path:
    """A free folder under ``runs/`` of this name or with a number behind it, or to `resume` the newest that is ours."""
    runs = Path("runs")
    pattern = re.compile(rf"{re.escape(name)}(?:-(\d+))?")
    there = {
        int(match[1] or 1): path
        for path in (runs.iterdir() if runs.is_dir() else ())
        if (match := pattern.fullmatch(path.name)) and foreign_names(path)
    }
    if resume:
        for _, path in sorted(there.items(), reverse=True):
            if is_ours(path):
                return path
        raise GraphjouleError(
            f"There is no training of {name} with these settings under {runs}/, so there is nothing to resume; name "
            "its folder with --out, or leave out --resume to begin one."
        )
    number = next(number for number in range(1, len(there) + 2) if number not in there)
    return runs / (name if number == 1 else f"{name}-{number}")


def check_folder(path: Path, recipe: Recipe, *, resume: bool) -> None:
    """Refuse a folder that holds another training or cannot be made; nothing is written.

    Whether files can really be written shows when the training begins: asking is not enough, see `ensure_folder`.
    """
    from graphjoule.training.folder import RunFolder

    check_place(path, resume=resume)
    folder = RunFolder(path)
    if resume and folder.is_taken:  # the graph will say which split "default" is, and what rules choose
        stored = folder.about().recipe
        if recipe.data.split == "default":
            data = recipe.data.model_copy(update={"split": stored.data.split})
            recipe = recipe.model_copy(update={"data": data})
        recipe = with_choices_of(recipe, stored)
    folder.check(recipe, resume=resume)


def check_place(path: Path, *, resume: bool) -> None:
    """Refuse an output folder that cannot be made, and to `resume` one that is not there."""
    nearest = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
    if not nearest.is_dir():
        raise GraphjouleError(f"Cannot use {path} as an output folder: {nearest.name} is a file.")
    if not os.access(nearest, os.W_OK):
        raise GraphjouleError(f"Cannot use {path} as an output folder: {nearest} cannot be written to.")
    if resume and not path.exists():
        raise GraphjouleError(
            f"There is no folder {path}, so there is nothing to resume; name the folder of the training with --out, or "
            "leave out --resume to begin one."
        )


def say_alone(run: Path) -> None:
    """Say so where a command takes one model of a run folder whose models predict together."""
    from graphjoule.training.folder import RunFolder

    if run.is_dir() and RunFolder(run).is_taken and (members := RunFolder(run).about().members):
        paths = " and ".join(str(run / "members" / name) for name in members)
        typer.echo(
            f"note: this is one of {len(members) + 1} models of {run} that predict together; name {paths} for "
            "the others",
            err=True,
        )


def check_output(out: Path, run: Path, inputs: Iterable[Path | None], *, force: bool, example: str) -> None:
    """Refuse a file that cannot be written, one that is there, and, with ``--force`` too, one that the command reads.

    Args:
        out: the file to write.
        run: a run folder or a model file; of a folder, only files of the example's kind are results.
        inputs: other files that are read.
        force: replace the file if it is there.
        example: a name for such a file.
    """
    if not out.absolute().parent.is_dir():
        raise GraphjouleError(f"--out is {out}, but there is no folder {out.absolute().parent}.")
    if out.is_dir():
        raise GraphjouleError(f"--out is {out}, which is a folder; name a file, such as {out / example}.")
    if out.exists() and not force:
        raise GraphjouleError(f"{out} is there already; add --force to replace it, or name another file with --out.")
    of_run = [path for path in run.iterdir() if path.suffix != Path(example).suffix] if run.is_dir() else [run]
    refuse_inputs(out, [*inputs, *of_run], "which this command reads")


def refuse_inputs(out: Path, inputs: Iterable[Path | None], which: str) -> None:
    """Refuse to write over what a user could not get back."""
    if out.exists() and any(path is not None and path.exists() and out.samefile(path) for path in inputs):
        raise GraphjouleError(f"--out is {out}, {which}; name another file.")
