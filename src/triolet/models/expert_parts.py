"""Tensors of experts as they are stored → the weights of each expert, by the names that Qwen3's files have.

Files have a tensor for each expert, under Mixtral's or Qwen's names, or one tensor for all the experts of a
layer, with gates and ups apart or stacked; the gate of a shared expert may be a vector. This module knows
shapes and names alone, no file format.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Part", "parts_of"]

_STACKED = re.compile(
    r"(.+\.mlp\.experts)\.(gate_up_proj|gate_proj|up_proj|down_proj)(?:\.weight)?", re.ASCII
)
_MIXTRAL = re.compile(r"(.+)\.block_sparse_moe\.(?:experts\.(\d+)\.(w[123])|gate)\.weight", re.ASCII)
_SHARED_GATE = ".mlp.shared_expert_gate.weight"
_MIXTRAL_PROJECTIONS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


@dataclass(frozen=True, slots=True)
class Part:
    """A weight of ``shape``: what is at ``index`` of a stored tensor, all of it where that is empty."""

    shape: tuple[int, ...]
    index: tuple[int | slice | None, ...] = ()

    def of(self, stored: Tensor) -> Tensor:
        """A view of the part."""
        return stored[self.index]


def parts_of(name: str, shape: tuple[int, ...], num_experts: int) -> dict[str, Part]:
    """The weights that a stored tensor of ``shape`` holds, by name: itself, where it is not of experts.

    So it is as well where the shape is not one of ``num_experts`` experts.
    """
    if name.endswith(_SHARED_GATE) and len(shape) == 1:
        return {name: Part((1, *shape), (None,))}
    match = _STACKED.fullmatch(name)
    if match is None or len(shape) != 3 or shape[0] != num_experts or shape[1] % 2:
        return {_renamed(name): Part(shape)}
    prefix, projection = match.groups()
    if projection != "gate_up_proj":
        return {
            f"{prefix}.{expert}.{projection}.weight": Part(shape[1:], (expert,))
            for expert in range(num_experts)
        }
    width = shape[1] // 2
    halves = {"gate_proj": slice(width), "up_proj": slice(width, 2 * width)}
    return {
        f"{prefix}.{expert}.{half}.weight": Part((width, shape[2]), (expert, rows))
        for expert in range(num_experts)
        for half, rows in halves.items()
    }


def _renamed(name: str) -> str:
    match = _MIXTRAL.fullmatch(name)
    if match is None:
        return name
    prefix, expert, projection = match.groups()
    if expert is None:
        return f"{prefix}.mlp.gate.weight"
    return f"{prefix}.mlp.experts.{expert}.{_MIXTRAL_PROJECTIONS[projection]}.weight"
