"""``graphjoule export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from graphjoule.cli.places import check_output, refuse_inputs, say_alone
from graphjoule.cli.terminal import Json
from graphjoule.errors import GraphjouleError
from graphjoule.files import check_free, json_text


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of `graphjoule train`, or a model file.")],
    out: Annotated[
        Path, typer.Option(help="The file to write, such as model.onnx or model.pt2; for hub a new folder.")
    ],
    format: Annotated[
        Literal["onnx", "torch", "hub"], typer.Option(help="onnx, torch (for torch.export.load) or hub (a folder).")
    ],
    seed: Annotated[int | None, typer.Option(help="Which run; by default the one that validated best.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there already.")] = False,
    json: Json = False,
) -> None:
    """Write a trained model so that it predicts elsewhere; onnx and torch need no graphjoule there.

    Examples:

    - `graphjoule export runs/cora-egnn-64 --format onnx --out cora.onnx`

    - `graphjoule export runs/cora-egnn-64 --seed 3 --format torch --out cora.pt2`

    - `graphjoule export runs/cora-egnn-64 --format hub --out cora-egnn` writes a folder that `huggingface_hub` uploads
    """
    if not run.exists():
        raise GraphjouleError(f"There is no run {run}; expected a folder that graphjoule train made, or a model file.")
    if format == "hub":
        if not run.is_dir():
            raise GraphjouleError(f"{run} is a model file; for --format hub name its run folder, which has its scores.")
        if out.exists() and not out.is_dir():
            raise GraphjouleError(f"--out is {out}, which is a file; --format hub writes a folder.")
        check_free(out)
    else:
        check_output(out, run, (), force=force, example="model.pt2" if format == "torch" else "model.onnx")
        if format == "torch" and out.suffix != ".pt2":
            raise GraphjouleError(f"--out is {out}; torch.export.load reads files whose name ends in .pt2.")

    from graphjoule.fitting import read_run
    from graphjoule.training.export import check_onnx, export_model
    from graphjoule.training.folder import RunFolder
    from graphjoule.training.hub import describe_model, export_to_hub

    if format == "onnx":
        check_onnx()
    found = read_run(run, seed=seed)
    ((chosen, model),) = found.models.items()
    if found.data is None:
        raise GraphjouleError(f"{run} does not say what it was trained on: an older version wrote it; train it again.")
    if found.data.source is not None:
        refuse_inputs(out, [Path(file.path) for file in found.data.source.files], "which the model was trained on")
    if format == "hub":
        record = RunFolder(run).records().get(chosen)
        if record is None:
            raise GraphjouleError(f"{run} was exported before and has no records; copy the folder as it is.")
        export_to_hub(out, model, found.recipe, record, found.data, found.calibrations.get(chosen))
    else:
        export_model(
            model,
            found.data,
            out,
            format=format,
            normalize_features=found.recipe.data.normalize_features,
            about=describe_model(found.recipe, chosen, found.data),
        )
    say_alone(run)
    if json:
        typer.echo(json_text({"format": format, "seed": chosen, "out": str(out)}))
    else:
        typer.echo(f"seed {chosen} of {run}: {out}")
