"""Running a step as it stands."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from triolet_kernels.ops import AttentionBatch, KVCache
from triolet_kernels.reference import ReferenceOps


def test_the_step_is_called_with_what_is_given() -> None:
    def step(residual: Tensor, batches: Sequence[AttentionBatch], kv_cache: KVCache, rows: Tensor) -> Tensor:
        assert (batches, kv_cache) == ((), [])
        return residual[rows]

    residual, rows = torch.randn(4, 3), torch.tensor([2, 0])
    assert torch.equal(ReferenceOps().step_runner()(step, residual, (), [], rows), residual[rows])
