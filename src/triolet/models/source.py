"""From what the user calls a model to files on disk.

A name is, in this order: a built-in short name, a path that exists (a ``.gguf`` file or a Hugging Face
directory), an id on the hub (``owner/repository``, or ``owner/repository/file.gguf``). This module knows
neither what is in the files nor torch.
"""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from triolet.errors import ModelFileError, UsageError
from triolet.models.fetch import BUILTIN_MODELS, default_cache_dir, fetch_builtin
from triolet.models.fetch_hub import HubName, fetch_from_hub
from triolet.models.fetch_progress import FetchProgress, ProgressCallback
from triolet.models.safetensors_index import find_weights

__all__ = ["FetchProgress", "ModelFiles", "local_files", "resolve_model"]

_HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:/([\w./ -]+\.gguf))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on disk.

    ``path``: the GGUF file, or the Hugging Face directory.
    ``weights``: the files that hold the weights.
    """

    path: Path
    kind: Literal["gguf", "huggingface"]
    weights: tuple[Path, ...]


def resolve_model(
    name: str,
    *,
    cache_dir: Path | None = None,
    revision: str | None = None,
    progress: ProgressCallback | None = None,
) -> ModelFiles:
    """The files of a model, fetched first where they are not on this machine; blocks until they are here.

    ``cache_dir`` defaults to :func:`~triolet.models.fetch.default_cache_dir` for built-in models, and to
    the hub's own cache for those of the hub. ``revision`` is for hub ids alone. ``progress`` may raise to
    end the fetch of a built-in model.

    Raises :class:`UsageError` for a name that names nothing, :class:`ModelFetchError` or
    :class:`ModelFileError`.
    """
    builtin = BUILTIN_MODELS.get(name.lower())
    path = None if builtin is not None else _existing_path(name)
    hub_name = None if builtin is not None or path is not None else _hub_name(name)
    if hub_name is not None:
        fetched = fetch_from_hub(hub_name, revision=revision, cache_dir=cache_dir)
        return local_files(fetched)
    if revision is not None:
        raise UsageError("revision (--revision) is for models of the hub only", param="revision")
    if builtin is not None:
        fetched = fetch_builtin(builtin, cache_dir or default_cache_dir(), progress)
        return local_files(fetched)
    if path is None:
        raise UsageError(_unknown(name), param="model")
    return local_files(path)


def local_files(path: Path) -> ModelFiles:
    """The model at a path that exists.

    Raises :class:`ModelFileError` if it is neither a GGUF file nor a directory with a model.
    """
    if path.is_dir():
        return _directory(path)
    if path.suffix.lower() != ".gguf" or not path.is_file():
        raise ModelFileError(f"{path}: is neither a .gguf file nor a directory with config.json")
    return ModelFiles(path, "gguf", (path,))


def _directory(path: Path) -> ModelFiles:
    if not (path / "config.json").is_file():
        files = sorted(path.glob("*.gguf"))
        hint = f"; did you mean {files[0]}?" if files else ""
        raise ModelFileError(f"{path}: has no config.json, so it is not a Hugging Face directory{hint}")
    return ModelFiles(path, "huggingface", find_weights(path))


def _existing_path(name: str) -> Path | None:
    if not name:
        return None
    try:
        path = Path(name).expanduser()
        path.stat()
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, no such user
        return None
    return path


def _hub_name(name: str) -> HubName | None:
    match = _HUB_NAME.fullmatch(name)
    # "folder/model.gguf" is a file that is missing, not a repository.
    if match is None or ".." in name or match[1].lower().endswith(".gguf"):
        return None
    return HubName(match[1], match[2])


def _unknown(name: str) -> str:
    names = [*BUILTIN_MODELS, *(str(file) for file in Path(os.path.dirname(name)).glob("*.gguf"))]
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    is_path = name.lower().endswith(".gguf") or name.startswith(("/", "./", "../", "~"))
    problem = "is no file or directory that exists" if is_path else "is nothing that is known here"
    return (
        f"model {name[:200]!r} {problem}{hint}\n"
        f"A model is named by a built-in name ({', '.join(BUILTIN_MODELS)}), by the path of a .gguf file or "
        "of a Hugging Face directory, or by its id on the hub (owner/repository, or "
        "owner/repository/file.gguf)."
    )
