"""The operations of a mixture of experts, with their contracts; a part of :class:`triolet_kernels.ops.Ops`.

Shapes: T tokens, of which each goes to K of E experts: T · K pairs of a token and an expert.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from triolet_kernels.quant import QuantTensor

__all__ = ["MAX_EXPERTS", "ExpertOps", "Routing"]

MAX_EXPERTS = 1024
"""More of them the kernels do not choose from."""


@dataclass(frozen=True, slots=True, eq=False)
class Routing:
    """Which experts tokens go to. Pairs are sorted by expert, those of one expert by token.

    ``tokens (T * K,)`` int64: the token of each pair. ``expert_starts (E + 1,)`` int32: pairs
    ``expert_starts[e]`` to before ``expert_starts[e + 1]`` are those of expert e, none perhaps.
    ``pairs (T, K)`` int32: the pair of each token's choices, the best first; ``weights (T, K)`` float32: what
    the choices count.
    """

    tokens: Tensor
    expert_starts: Tensor
    pairs: Tensor
    weights: Tensor


class ExpertOps(Protocol):
    """One implementation of each."""

    def pack_router(self, weight: Tensor) -> Any:
        """Prepare a weight ``(E, in)`` for :meth:`route`; opaque."""
        ...

    def route(self, x: Tensor, router: Any, num_chosen: int, *, is_normalized: bool) -> Routing:
        """Choose the ``num_chosen`` experts with the highest logits for each row of ``x (T, in)``.

        Logits, ``x`` times the router's weight, are computed in float32. Of equal ones the expert with the
        lower number is chosen. An expert counts what the softmax of all logits gives it, or of those of the
        chosen ones if ``is_normalized``. Rows that are not finite go to some experts, and count NaN.
        """
        ...

    def pack_experts(self, weights: Sequence[Tensor | QuantTensor], dtype: torch.dtype) -> Any:
        """Prepare a weight ``(out, in)`` of each expert for :meth:`expert_linear`, inputs of ``dtype``.

        The result is opaque. Raises NotFiniteError as :meth:`~triolet_kernels.ops.Ops.pack_linear`.
        """
        ...

    def expert_linear(self, x: Tensor, packed: Any, expert_starts: Tensor) -> Tensor:
        """``x (T * K, in)``, a row for each pair, times the weights of their experts → ``(T * K, out)``."""
        ...

    def sum_experts(self, x: Tensor, routing: Routing) -> Tensor:
        """Add up the rows of each token, times what they count, in float32 → ``(T, size)``.

        ``x (T * K, size)`` has a row for each pair. The best choice comes first in the sum.
        """
        ...

    def add_shared_expert(self, total: Tensor, shared: Tensor, x: Tensor, gate: Any) -> None:
        """``total += sigmoid(x · gate) * shared`` in place, computed in float32.

        ``total``, ``shared (T, size)`` and ``x (T, in)`` are of one dtype; ``gate`` is a weight ``(1, in)``
        from :meth:`pack_router`.
        """
        ...
