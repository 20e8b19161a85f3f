"""A step and its draw as one program: the tokens of the operations called one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.kernels.batches import make_batch
from tests.kernels.cpu.variants import isa_of, make_ops
from tests.kernels.draws import make_settings
from tests.kernels.quantized import quantize
from torch import Tensor

from triolet_kernels.cpu import CpuOps
from triolet_kernels.cpu.loader import NativeLibrary
from triolet_kernels.cpu.recorded_draw import RecordedDraw
from triolet_kernels.ops import MAX_DRAWN, AttentionBatch, DrawnTokens, DrawSettings, KVCache

HIDDEN, VOCAB = 64, 5000
CACHE: KVCache = [(torch.zeros(1), torch.zeros(1))]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "uniform": 0.3},
    {"temperature": 0.7, "uniform": 0.9, "top_k": 20, "top_p": 0.9},
    {"temperature": 1.5, "uniform": 0.5, "min_p": 0.1},
]


class Model:
    """A norm and a vocabulary."""

    def __init__(self, ops: CpuOps, dtype: torch.dtype) -> None:
        weight = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(1)) / 4
        self.ops = ops
        self.dtype = dtype
        self.output = ops.pack_linear(quantize(weight, "Q8_0"), None, dtype)
        self.norm = torch.ones(HIDDEN)
        self.num_draws = 0

    def step(
        self, residual: Tensor, batches: Sequence[AttentionBatch], kv_cache: KVCache, rows: Tensor
    ) -> Tensor:
        return self.ops.take_rows(self.ops.rms_norm(residual, self.norm, 1e-5, self.dtype), rows)

    def draw(self, hidden: Tensor, settings: DrawSettings) -> DrawnTokens:
        self.num_draws += 1
        return self.ops.draw(self.ops.to_float32(self.ops.linear(hidden, self.output)), settings)


def settings_of(num_rows: int) -> DrawSettings:
    return make_settings([SETTINGS[index % len(SETTINGS)] for index in range(num_rows)])


def check(runner: Any, model: Model, num_rows: int, settings: DrawSettings | None = None) -> None:
    residual = torch.randn(num_rows, HIDDEN, generator=torch.Generator().manual_seed(num_rows))
    batches, rows = [make_batch([(0, num_rows)], 32)], torch.arange(num_rows).flip(0)
    settings = settings or settings_of(num_rows)
    drawn = runner.draw(model.step, model.draw, residual, batches, CACHE, rows, settings)
    expected = model.draw(model.step(residual, batches, CACHE, rows), settings)
    model.num_draws -= 1
    assert drawn.token_ids.tolist() == expected.token_ids.tolist()
    assert drawn.num_kept.tolist() == expected.num_kept.tolist()
    assert np.array_equal(drawn.highest, expected.highest)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_same_tokens_as_one_by_one(ops: CpuOps, dtype: torch.dtype, num_threads: int) -> None:
    ops = make_ops(isa_of(ops), num_threads)
    model, runner = Model(ops, dtype), ops.step_runner()
    for num_rows in (1, 5, MAX_DRAWN, 2):
        check(runner, model, num_rows)
    assert model.num_draws == 1, "recorded once, then run without the model"


def test_settings_of_the_last_run_are_kept_and_no_others(ops: CpuOps) -> None:
    model, runner = Model(ops, torch.bfloat16), ops.step_runner()
    first, fewer = settings_of(6), settings_of(3)
    greedy = replace(first, temperatures=np.zeros(6))
    redrawn = [replace(first, uniforms=np.full(6, number)) for number in (0.05, 0.95)]
    for settings in (first, first, *redrawn, greedy, first, fewer, first, redrawn[0], fewer):
        check(runner, model, len(settings.top_k), settings)


def test_a_larger_step_is_recorded_again_with_its_draw(ops: CpuOps) -> None:
    model, runner = Model(ops, torch.bfloat16), ops.step_runner()
    check(runner, model, 3)
    rows, batches = torch.tensor([599]), [make_batch([(0, 600)], 32)]
    residual, settings = torch.randn(600, HIDDEN), make_settings([{}])
    drawn = runner.draw(model.step, model.draw, residual, batches, CACHE, rows, settings).token_ids.tolist()
    assert model.num_draws == 2
    assert drawn == model.draw(model.step(residual, batches, CACHE, rows), settings).token_ids.tolist()


def test_a_draw_that_asks_torch_for_something_runs_as_it_stands(ops: CpuOps) -> None:
    class Capped(Model):
        def draw(self, hidden: Tensor, settings: DrawSettings) -> DrawnTokens:
            self.num_draws += 1
            return ops.draw(ops.to_float32(ops.linear(hidden, self.output)).tanh(), settings)

    model, runner = Capped(ops, torch.bfloat16), ops.step_runner()
    for num_rows in (2, 3):
        check(runner, model, num_rows)
    assert model.num_draws == 3, "one try to record it, then once a step"


def test_without_compiled_kernels_it_runs_as_it_stands() -> None:
    ops = CpuOps(NativeLibrary.missing())
    check(ops.step_runner(), Model(ops, torch.float32), 2)


def test_a_row_without_memory_to_sort_it_is_told() -> None:
    token_ids = np.array([3, -1, -1])

    def draw(hidden: Tensor, settings: DrawSettings) -> DrawnTokens:
        return DrawnTokens(token_ids, np.zeros(3, dtype=np.float32), np.ones(3, dtype=np.int64))

    recorded = RecordedDraw(draw)
    recorded.record(torch.zeros(3, HIDDEN))
    assert recorded.drawn(1).token_ids.tolist() == [3]
    with pytest.raises(MemoryError, match="sort a row"):
        recorded.drawn(2)
