"""Which files of a Hugging Face directory hold the weights: one ``model.safetensors``, or shards.

This module reads the index of the shards, never the weights, and loads no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from triolet.errors import ModelFileError
from triolet.models.json_file import read_json_object

__all__ = ["find_weights"]

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def find_weights(directory: Path) -> tuple[Path, ...]:
    """The weight files of a directory, sorted by name; all of them exist.

    Raises :class:`ModelFileError` if there are none, or naming the shard that is missing or lies elsewhere.
    """
    if (directory / _INDEX).is_file():
        return _shards(directory)
    if (directory / _SINGLE).is_file():
        return (directory / _SINGLE,)
    raise ModelFileError(
        f"{directory}: there is neither {_SINGLE} nor {_INDEX}; "
        "weights in other formats (.bin, .pt) are not read, convert them to safetensors"
    )


def _shards(directory: Path) -> tuple[Path, ...]:
    index = directory / _INDEX
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, Mapping) or not weight_map:
        raise ModelFileError(f"{index}: weight_map must be an object of tensor names and file names")
    for name in weight_map.values():
        if not isinstance(name, str) or not name.endswith(".safetensors") or Path(name).name != name:
            raise ModelFileError(
                f"{index}: {str(name)[:100]!r} is not the plain name of a .safetensors file in this directory"
            )
    shards = tuple(directory / name for name in sorted(set(weight_map.values())))
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise ModelFileError(
            f"{directory}: {len(missing)} of {len(shards)} shards named in {_INDEX} are missing: "
            f"{', '.join(missing[:5])}; fetch them again"
        )
    return shards
