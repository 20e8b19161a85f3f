"""From what the user calls a model to files on disk.

A name is, in this order: a built-in short name, a path that exists (a ``.gguf`` file or a Hugging Face
directory), an id on the hub (``owner/repository``, or ``owner/repository/file.gguf``). This module knows
neither what is in the files nor torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from triolet.errors import ModelFileError
from triolet.models.safetensors_index import find_weights

__all__ = ["ModelFiles", "local_files"]


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on disk.

    ``name``: what the model is called where the user gives it no other name.
    ``path``: the GGUF file, or the Hugging Face directory.
    ``weights``: the files that hold the weights.
    """

    name: str
    path: Path
    kind: Literal["gguf", "huggingface"]
    weights: tuple[Path, ...]


def local_files(path: Path, *, name: str | None = None) -> ModelFiles:
    """The model at a path that exists.

    Raises :class:`ModelFileError` if it is neither a GGUF file nor a directory with a model.
    """
    if path.is_dir():
        return _directory(path, name or path.resolve().name)
    if path.suffix.lower() != ".gguf":
        raise ModelFileError(f"{path}: is neither a .gguf file nor a directory with config.json")
    return ModelFiles(name or path.stem, path, "gguf", (path,))


def _directory(path: Path, name: str) -> ModelFiles:
    if not (path / "config.json").is_file():
        files = sorted(path.glob("*.gguf"))
        hint = f"; did you mean {files[0]}?" if files else ""
        raise ModelFileError(f"{path}: has no config.json, so it is not a Hugging Face directory{hint}")
    return ModelFiles(name, path, "huggingface", find_weights(path))
