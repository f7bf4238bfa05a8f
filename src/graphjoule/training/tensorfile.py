"""Named tensors in a file: safetensors with a checksum, written whole or not at all, never executed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.files import printable, write_bytes

_FORMAT = 1


def write_tensors(path: str | os.PathLike[str], kind: str, tensors: Mapping[str, Tensor], about: Any) -> None:
    """Write tensors and a JSON description of them.

    Args:
        path: the file; its folder must exist.
        kind: what the file is, such as "model" or "checkpoint"; `read_tensors` asks for the same word.
        tensors: any shapes and dtypes, from any device.
        about: whatever JSON can hold.
    """
    stored = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    description = json.dumps(about)
    header = {"format": _FORMAT, "kind": kind, "about": description, "sha256": _digest(stored, description)}
    # One entry: safetensors writes several in any order, and equal content shall be equal bytes.
    write_bytes(path, safetensors.torch.save(stored, {"graphjoule": json.dumps(header)}))


def read_tensors(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Tensor], Any]:
    """Tensors and description from a file that `write_tensors` wrote; anything else is refused with a sentence."""
    path = Path(path)
    if not path.is_file():
        raise GraphjouleError(f"There is no file {path}; expected a graphjoule {kind}.")
    try:
        with path.open("rb") as held, safetensors.safe_open(_in_utf8(path, held), framework="pt") as file:
            header = json.loads((file.metadata() or {}).get("graphjoule", "{}"))
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - not a dict
    except (safetensors.SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise GraphjouleError(
            f"{path} is not a whole graphjoule {kind}: it is truncated or of another kind."
        ) from error
    if not isinstance(header, dict) or header.get("format") != _FORMAT or header.get("kind") != kind:
        raise GraphjouleError(f"{path} is not a graphjoule {kind} of format {_FORMAT}.")
    description = str(header.get("about", "null"))
    if header.get("sha256") != _digest(tensors, description):
        raise GraphjouleError(f"{path} is damaged: its content does not match its checksum.")
    return tensors, json.loads(description)


def _in_utf8(path: Path, held: BinaryIO) -> Path:
    """A path to an open file that safetensors takes: it knows UTF-8 alone."""
    return path if printable(str(path)) == str(path) else Path(f"/proc/self/fd/{held.fileno()}")


def _digest(tensors: Mapping[str, Tensor], description: str) -> str:
    """SHA-256 over the description and every tensor with its name, dtype and shape."""
    digest = hashlib.sha256(description.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
