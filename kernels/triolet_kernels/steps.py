"""What a model computes in one step, and what runs it, over and over.

This module knows no implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

    from triolet_kernels.ops import AttentionBatch, DrawnTokens, DrawSettings, KVCache

__all__ = ["Draw", "Step", "StepRunner"]

Step: TypeAlias = "Callable[[Tensor, Sequence[AttentionBatch], KVCache, Tensor], Tensor]"
"""What a model computes of ``residual (T, hidden)`` float32, a batch for each group of layers, a KV cache and
``rows (R,)`` int64, the tokens that are looked at in the end → ``(R, …)``.

It calls nothing but operations, always the same ones. The residual is changed in place.
"""

Draw: TypeAlias = "Callable[[Tensor, DrawSettings], DrawnTokens]"
"""What is drawn after what a step returned; it calls nothing but operations, as a step does."""


class StepRunner(Protocol):
    """Runs a step, over and over."""

    def __call__(
        self, step: Step, residual: Tensor, batches: Sequence[AttentionBatch], kv_cache: KVCache, rows: Tensor
    ) -> Tensor:
        """What ``step``, always the same one, returns for these arguments.

        The result is valid until the next call.
        """
        ...

    def draw(
        self,
        step: Step,
        draw: Draw,
        residual: Tensor,
        batches: Sequence[AttentionBatch],
        kv_cache: KVCache,
        rows: Tensor,
        settings: DrawSettings,
    ) -> DrawnTokens:
        """What ``draw``, always the same one, makes of what ``step`` returns, for up to ``MAX_DRAWN`` rows.

        The result is valid until the next call. MemoryError as :meth:`triolet_kernels.ops.Ops.draw`.
        """
        ...
