"""Runners of steps: all do the same."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tests.kernels.draws import make_settings
from torch import Tensor

from triolet_kernels.ops import AttentionBatch, DrawnTokens, DrawSettings, KVCache, select_ops
from triolet_kernels.reference import ReferenceOps
from triolet_kernels.steps import StepRunner


def test_every_runner_draws_what_the_step_leads_to() -> None:
    ops, cache = ReferenceOps(), [(torch.zeros(1), torch.zeros(1))]

    def step(residual: Tensor, batches: Sequence[AttentionBatch], kv_cache: KVCache, rows: Tensor) -> Tensor:
        return ops.take_rows(residual, rows)

    def draw(hidden: Tensor, settings: DrawSettings) -> DrawnTokens:
        return ops.draw(ops.to_float32(hidden), settings)

    residual, rows, settings = torch.randn(5, 40), torch.tensor([4, 0]), make_settings([{}] * 2)
    runners: list[StepRunner] = [ops.step_runner(), select_ops(torch.device("cpu")).step_runner()]
    for runner in runners:
        assert torch.equal(runner(step, residual, (), cache, rows), residual[rows])
        drawn = runner.draw(step, draw, residual, (), cache, rows, settings)
        assert drawn.token_ids.tolist() == residual[rows].argmax(dim=1).tolist()
