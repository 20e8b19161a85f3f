"""A step of a model, run as it stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from triolet_kernels.ops import AttentionBatch, KVCache, Step

__all__ = ["run_step"]


def run_step(
    step: Step, residual: Tensor, batches: Sequence[AttentionBatch], kv_cache: KVCache, rows: Tensor
) -> Tensor:
    """See :class:`triolet_kernels.ops.StepRunner`."""
    return step(residual, batches, kv_cache, rows)
