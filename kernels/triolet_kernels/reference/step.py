"""A step of a model, run as it stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from triolet_kernels.ops import AttentionBatch, DrawnTokens, DrawSettings, KVCache
    from triolet_kernels.steps import Draw, Step

__all__ = ["PlainRunner"]


class PlainRunner:
    """A :class:`triolet_kernels.steps.StepRunner` that adds nothing."""

    def __call__(
        self, step: Step, residual: Tensor, batches: Sequence[AttentionBatch], kv_cache: KVCache, rows: Tensor
    ) -> Tensor:
        return step(residual, batches, kv_cache, rows)

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
        return draw(step(residual, batches, kv_cache, rows), settings)
