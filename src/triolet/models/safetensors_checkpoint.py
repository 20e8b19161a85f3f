"""``SafetensorsCheckpoint``: the tensors of a Hugging Face directory.

The headers are parsed and checked by the ``safetensors`` package (bounded, no gaps, no overlaps); here its
errors get the file's name, and what one file says is held against the others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from triolet.errors import ModelFileError, WeightsError
from triolet.models.config import ModelConfig
from triolet.models.config_huggingface import from_huggingface
from triolet.models.expert_parts import Part, parts_of
from triolet.models.json_file import read_json_object

__all__ = ["SafetensorsCheckpoint"]

_DTYPES = ("F32", "F16", "BF16")
_ROTARY_TABLE = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a weight is: in an open file, the tensor ``stored``, or a part of it."""

    file: Any
    stored: str
    part: Part


class SafetensorsCheckpoint:
    """A :class:`~triolet.models.checkpoint.Checkpoint` over ``config.json`` and its weight files."""

    def __init__(self, directory: Path, weights: Sequence[Path]) -> None:
        self._directory = directory
        source = directory / "config.json"
        self.config: ModelConfig = from_huggingface(read_json_object(source), source=str(source))
        self._places: dict[str, _Place] = {}
        with ExitStack() as stack:
            for path in weights:
                file = stack.enter_context(_open(path))
                for stored in file.keys():  # noqa: SIM118  not a mapping
                    if not self._is_redundant(stored):
                        self._add(path, file, stored)
            self._stack = stack.pop_all()
        self.tensor_shapes: Mapping[str, tuple[int, ...]] = {
            name: place.part.shape for name, place in self._places.items()
        }

    def _add(self, path: Path, file: Any, stored: str) -> None:
        """Note where the weights of a stored tensor are."""
        shape = _shape(path, file, stored)
        for name, part in parts_of(stored, shape, self.config.num_experts).items():
            if name in self._places:
                other = self._places[name].stored
                what = "is in another file too" if other == stored else f"holds {name}, as {other} does"
                raise ModelFileError(f"{path}: the tensor {stored} {what}")
            self._places[name] = _Place(file, stored, part)

    def tensor(self, name: str) -> Tensor:
        """See :class:`~triolet.models.checkpoint.Checkpoint`."""
        if name not in self.tensor_shapes:
            raise WeightsError(f"{self._directory}: there is no tensor {name}")
        place = self._places[name]
        value: Tensor = place.part.of(place.file.get_tensor(place.stored))
        is_norm = name.endswith("norm.weight")
        return value.to(torch.float32) + 1 if is_norm and self.config.architecture == "gemma3" else value

    def close(self) -> None:
        self._places = {}
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _is_redundant(self, name: str) -> bool:
        if name == "lm_head.weight":
            return self.config.is_embedding_tied
        return _ROTARY_TABLE.fullmatch(name) is not None


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ModelFileError(f"{path}: is not a valid safetensors file: {error}") from error
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error


def _shape(path: Path, file: Any, name: str) -> tuple[int, ...]:
    view = file.get_slice(name)
    if view.get_dtype() not in _DTYPES:
        raise ModelFileError(
            f"{path}: the tensor {name} is {view.get_dtype()}, which is not supported; "
            f"known are {', '.join(_DTYPES)}"
        )
    return tuple(view.get_shape())
