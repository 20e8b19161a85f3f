"""Running a step as it stands."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tests.kernels.draws import make_settings
from torch import Tensor

from triolet_kernels.ops import AttentionBatch, DrawnTokens, DrawSettings, KVCache
from triolet_kernels.reference import ReferenceOps


def take(residual: Tensor, batches: Sequence[AttentionBatch], kv_cache: KVCache, rows: Tensor) -> Tensor:
    assert (batches, kv_cache) == ((), [])
    return residual[rows]


def test_the_step_is_called_with_what_is_given() -> None:
    residual, rows = torch.randn(4, 3), torch.tensor([2, 0])
    assert torch.equal(ReferenceOps().step_runner()(take, residual, (), [], rows), residual[rows])


def test_what_is_drawn_comes_of_what_the_step_returns() -> None:
    ops = ReferenceOps()

    def draw(logits: Tensor, settings: DrawSettings) -> DrawnTokens:
        return ops.draw(2 * logits, settings)

    residual, rows = torch.randn(4, 3), torch.tensor([2, 0])
    drawn = ops.step_runner().draw(take, draw, residual, (), [], rows, make_settings([{}] * 2))
    assert drawn.token_ids.tolist() == residual[rows].argmax(dim=1).tolist()
    assert drawn.highest.tolist() == (2 * residual[rows].amax(dim=1)).tolist()
