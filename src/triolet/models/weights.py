"""``Weights``: the tensors of a checkpoint, checked against what a model expects, read once and made layers.

Tensors are read one at a time and packed at once, so that loading takes little more memory than the model
itself. This module knows no architecture and no file format.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from triolet.errors import UsageError, WeightsError
from triolet.models.layers import Embedding, Linear, RMSNorm, SummedLinear, fuse_rows, to_dense
from triolet_kernels.quant import NotFiniteError, QuantTensor
from triolet_kernels.reference.step import PlainRunner

if TYPE_CHECKING:
    from triolet.models.checkpoint import Checkpoint
    from triolet.models.sharding import Shard
    from triolet_kernels.ops import Ops
    from triolet_kernels.steps import StepRunner

__all__ = ["Shapes", "Weights", "check_shapes"]

Shapes = Mapping[str, tuple[int, ...]]
Cut = Callable[["Tensor | QuantTensor"], "Tensor | QuantTensor"]
"""What takes of a tensor the part that is wanted, before it is moved anywhere."""

_MAX_LISTED = 8


def _whole(tensor: Tensor | QuantTensor) -> Tensor | QuantTensor:
    return tensor


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


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
    raise, to end the loading. With ``shard``, of each matrix only its part is read.
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
        shard: Shard | None = None,
    ) -> None:
        self.ops = ops
        self.dtype = dtype
        self.device = device
        self._checkpoint = checkpoint
        self._shapes = shapes
        self._on_tensor = on_tensor
        self._shard = shard

    def linear(self, *names: str) -> Linear:
        """One layer for the projections ``names``, which share their input; outputs in this order.

        A shard has the outputs of its part. Raises WeightsError for weights that are not finite, as far as
        that is cheap to see.
        """
        weight = fuse_rows(
            [self._tensor(f"{name}.weight", self._rows_of(name)) for name in names], self.dtype
        )
        has_bias = f"{names[0]}.bias" in self._shapes
        bias = (
            torch.cat([self._vector(f"{name}.bias", self._rows_of(name)) for name in names])
            if has_bias
            else None
        )
        return self._linear(names, weight, bias)

    def vocabulary(self, name: str) -> Linear:
        """The projection that makes logits; a shard has those of its part."""
        weight = self._tensor(f"{name}.weight", self._rows_of(name))
        return self._linear([name], weight, None, is_vocabulary=True)

    def output_linear(self, name: str) -> Linear | SummedLinear:
        """The projection, without a bias, of what several shards have a part of each; theirs are summed."""
        linear = self.partial_linear(name)
        return linear if self._shard is None else SummedLinear(linear, self._shard.sum)

    def partial_linear(self, name: str) -> Linear:
        """As :meth:`output_linear`, but what comes out is to be given to :attr:`sum_shards` in the end."""
        weight = self._tensor(f"{name}.weight", self._columns_of(name))
        return self._linear([name], weight, None)

    def _linear(
        self,
        names: Sequence[str],
        weight: Tensor | QuantTensor,
        bias: Tensor | None,
        *,
        is_vocabulary: bool = False,
    ) -> Linear:
        with _finite(names):
            return Linear(self.ops, weight, bias, self.dtype, is_vocabulary=is_vocabulary)

    def router(self, name: str) -> Any:
        """The projection ``name`` as :meth:`~triolet_kernels.expert_ops.ExpertOps.route` takes it."""
        return self.ops.pack_router(to_dense(self._tensor(f"{name}.weight")))

    def expert_linears(self, names: Sequence[Sequence[str]]) -> Any:
        """For each expert the projections that share their input, packed for ``expert_linear``.

        Shards and errors are as those of :meth:`linear`.
        """
        return self._experts(
            names[0],
            [
                fuse_rows([self._tensor(f"{name}.weight", self._rows_of(name)) for name in fused], self.dtype)
                for fused in names
            ],
        )

    def expert_output_linears(self, names: Sequence[str]) -> Any:
        """For each expert the projection of what several shards have a part of each.

        What comes out is to be given to :attr:`sum_shards` in the end.
        """
        weights = [self._tensor(f"{name}.weight", self._columns_of(name)) for name in names]
        return self._experts(names[:1], weights)

    def _experts(self, names: Sequence[str], weights: Sequence[Tensor | QuantTensor]) -> Any:
        with _finite([*names, "the other experts"]):
            return self.ops.pack_experts(weights, self.dtype)

    @property
    def sum_shards(self) -> Callable[[Tensor], Tensor]:
        """Adds up what the shards have made of their parts of each; nothing where there is one alone."""
        return _as_it_is if self._shard is None else self._shard.sum

    def step_runner(self) -> StepRunner:
        """What runs a step. Shards talk to each other within one, which only the plain way allows."""
        return self.ops.step_runner() if self._shard is None else PlainRunner()

    def embedding(self, name: str, multiplier: float) -> Embedding:
        return Embedding(self.ops, self._tensor(f"{name}.weight"), self.dtype, multiplier)

    def rms_norm(self, name: str, eps: float) -> RMSNorm:
        return RMSNorm(self.ops, self.norm_weight(name), eps, self.dtype)

    def norm_weight(self, name: str) -> Tensor:
        """The weight of a norm, float32, in the plain multiplier form."""
        return self._vector(f"{name}.weight")

    def _rows_of(self, name: str) -> Cut:
        if self._shard is None:
            return _whole
        part = self._shard.part_of(name)
        return lambda tensor: tensor.rows(part) if isinstance(tensor, QuantTensor) else tensor[part]

    def _columns_of(self, name: str) -> Cut:
        if self._shard is None:
            return _whole
        part = self._shard.part_of(name)
        return lambda tensor: _columns(tensor, part)

    def _vector(self, name: str, cut: Cut = _whole) -> Tensor:
        # A copy, because one view that lives on would keep the whole mapped file in memory.
        return to_dense(self._tensor(name, cut)).to(torch.float32, copy=True)

    def _tensor(self, name: str, cut: Cut = _whole) -> Tensor | QuantTensor:
        self._on_tensor()
        tensor = cut(self._checkpoint.tensor(name))
        if isinstance(tensor, QuantTensor):
            return dataclasses.replace(tensor, data=tensor.data.to(self.device))
        return tensor.to(self.device)


@contextlib.contextmanager
def _finite(names: Sequence[str]) -> Iterator[None]:
    """Raises WeightsError where weights turn out not to be finite."""
    try:
        yield
    except NotFiniteError as error:
        raise WeightsError(
            f"the weights of {', '.join(names)} cannot be used: {error}. "
            "The file is damaged or was made wrongly: fetch it again, or convert the model anew."
        ) from error


def _columns(tensor: Tensor | QuantTensor, part: slice) -> Tensor | QuantTensor:
    """Raises UsageError where a shard's part is not a whole number of quantised blocks."""
    if not isinstance(tensor, QuantTensor):
        return tensor[:, part].contiguous()
    try:
        return tensor.columns(part)
    except ValueError as error:
        raise UsageError(
            f"tensor_parallel_size (--tensor-parallel-size) does not go with these weights: {error}; choose "
            "fewer shards, or weights in another format",
            param="tensor_parallel_size",
        ) from error
