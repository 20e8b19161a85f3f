"""``Weights``: the tensors of a checkpoint, checked against what a model expects, read once and made layers.

Tensors are read one at a time and packed at once, so that loading takes little more memory than the model
itself. This module knows no architecture and no file format.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from triolet.errors import WeightsError
from triolet.models.layers import Embedding, Linear, RMSNorm, fuse_rows, to_dense
from triolet_kernels.quant import NotFiniteError, QuantTensor

if TYPE_CHECKING:
    from triolet.models.checkpoint import Checkpoint
    from triolet_kernels.ops import Ops

__all__ = ["Shapes", "Weights", "check_shapes"]

Shapes = Mapping[str, tuple[int, ...]]

_MAX_LISTED = 8


def check_shapes(expected: Shapes, found: Shapes) -> None:
    """Raise :class:`WeightsError` naming the tensors that are missing, unexpected or wrongly shaped."""
    problems = [
        *_listed("missing", [f"{name} {shape}" for name, shape in expected.items() if name not in found]),
        *_listed(
            "unexpected",
            [f"{name} {tuple(shape)}" for name, shape in found.items() if name not in expected],
        ),
        *_listed(
            "wrongly shaped",
            [
                f"{name} is {tuple(found[name])}, expected {shape}"
                for name, shape in expected.items()
                if name in found and tuple(found[name]) != shape
            ],
        ),
    ]
    if problems:
        raise WeightsError(
            f"the weights do not fit the model's config: {'; '.join(problems)}. "
            "Check that weights and config belong to the same model and that no file is missing."
        )


def _listed(problem: str, tensors: list[str]) -> list[str]:
    if not tensors:
        return []
    more = f" and {len(tensors) - _MAX_LISTED} more" if len(tensors) > _MAX_LISTED else ""
    return [f"{len(tensors)} {problem}: {', '.join(tensors[:_MAX_LISTED])}{more}"]


class Weights:
    """Makes layers of the tensors of a checkpoint, for ``ops`` on ``device`` with activations of ``dtype``.

    ``shapes`` are the tensors that are there, by name; layers are named without the ending of their tensors:
    ``linear("model.layers.0.mlp.down_proj")``. ``on_tensor`` is called before each tensor is read; it may
    raise, to end the loading.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        shapes: Shapes,
        ops: Ops,
        *,
        dtype: torch.dtype,
        device: torch.device,
        on_tensor: Callable[[], None] = lambda: None,
    ) -> None:
        self.ops = ops
        self.dtype = dtype
        self.device = device
        self._checkpoint = checkpoint
        self._shapes = shapes
        self._on_tensor = on_tensor

    def linear(self, *names: str) -> Linear:
        """One layer for the projections ``names``, which share their input; outputs in this order.

        Raises WeightsError for weights that are not finite, as far as that is cheap to see.
        """
        weight = fuse_rows([self._tensor(f"{name}.weight") for name in names])
        has_bias = f"{names[0]}.bias" in self._shapes
        bias = torch.cat([self._vector(f"{name}.bias") for name in names]) if has_bias else None
        try:
            return Linear(self.ops, weight, bias, self.dtype)
        except NotFiniteError as error:
            raise WeightsError(
                f"the weights of {', '.join(names)} cannot be used: {error}. "
                "The file is damaged or was made wrongly: fetch it again, or convert the model anew."
            ) from error

    def embedding(self, name: str, multiplier: float) -> Embedding:
        return Embedding(self.ops, self._tensor(f"{name}.weight"), self.dtype, multiplier)

    def rms_norm(self, name: str, eps: float) -> RMSNorm:
        return RMSNorm(self.ops, self.norm_weight(name), eps, self.dtype)

    def norm_weight(self, name: str) -> Tensor:
        """The weight of a norm, float32, in the plain multiplier form."""
        return self._vector(f"{name}.weight")

    def _vector(self, name: str) -> Tensor:
        # A copy, because one view that lives on would keep the whole mapped file in memory.
        return to_dense(self._tensor(name)).to(torch.float32, copy=True)

    def _tensor(self, name: str) -> Tensor | QuantTensor:
        self._on_tensor()
        tensor = self._checkpoint.tensor(name)
        if isinstance(tensor, QuantTensor):
            return dataclasses.replace(tensor, data=tensor.data.to(self.device))
        return tensor.to(self.device)
