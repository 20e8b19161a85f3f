"""Steps run as programs: the bits of the operations called one by one, whatever the step is over."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.kernels.batches import make_batch
from tests.kernels.cpu.variants import isa_of, make_ops
from tests.kernels.memory_limit import LARGE, no_large_memory
from tests.kernels.quantized import quantize
from torch import Tensor

from triolet_kernels.cpu import CpuOps, program
from triolet_kernels.cpu.loader import NativeLibrary
from triolet_kernels.ops import AttentionBatch, KVCache

HIDDEN, WIDTH, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 96, 160, 4, 2, 32, 32
QKV = (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM
WINDOWS = (None, 20)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A decoder layer with everything that one may have."""

    ops: CpuOps
    dtype: torch.dtype
    window: int | None
    weights: dict[str, object]
    norm: Tensor
    head_norm: Tensor
    angles: Tensor

    @classmethod
    def make(cls, ops: CpuOps, dtype: torch.dtype, window: int | None) -> Layer:
        def pack(kind: str, height: int, width: int, has_bias: bool = False) -> object:
            weight = torch.randn(height, width) / width**0.5
            return ops.pack_linear(
                weight.to(dtype) if kind == "dense" else quantize(weight, kind),
                torch.randn(height) if has_bias else None,
                dtype,
            )

        weights = {
            "qkv": pack("Q4_1", QKV, HIDDEN, has_bias=True),
            "output": pack("Q8_0", HIDDEN, NUM_HEADS * HEAD_DIM),
            "gate_up": pack("Q4_0", 2 * WIDTH, HIDDEN),
            "down": pack("dense", HIDDEN, WIDTH),
        }
        norm, head_norm, angles = torch.rand(HIDDEN), torch.rand(HEAD_DIM), torch.randn(600, HEAD_DIM)
        return cls(
            ops=ops,
            dtype=dtype,
            window=window,
            weights=weights,
            norm=norm,
            head_norm=head_norm,
            angles=angles,
        )

    def __call__(
        self, residual: Tensor, batch: AttentionBatch, cache: tuple[Tensor, Tensor], rows: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ops, weights = self.ops, self.weights
        x = ops.rms_norm(residual, self.norm, 1e-5, self.dtype)
        qkv = ops.linear(x, weights["qkv"])  # type: ignore[arg-type]
        norm = self.head_norm
        query = ops.rotary_and_cache(
            qkv, batch, self.angles, *cache, num_heads=NUM_HEADS, q_norm=norm, k_norm=norm
        )
        x = ops.paged_attention(query, *cache, batch, scale=0.2, window=self.window)
        x = ops.linear(x, weights["output"])  # type: ignore[arg-type]
        if rows is not None:
            x, residual = ops.take_rows(x, rows), ops.take_rows(residual, rows)
        x = ops.rms_norm(ops.add_rms_norm(x, residual, self.norm, 1e-5), self.norm, 1e-5)
        x = ops.gated_linear(x, weights["gate_up"], "silu" if self.window else "gelu")  # type: ignore[arg-type]
        x = ops.linear(x, weights["down"])  # type: ignore[arg-type]
        return ops.add_rms_norm(x, residual, self.norm, 1e-5), residual


class Model:
    """Two layers, with and without a window, each with block tables of its own."""

    def __init__(self, ops: CpuOps, dtype: torch.dtype) -> None:
        self.layers = [Layer.make(ops, dtype, window) for window in WINDOWS]
        self.num_runs = 0

    def step(
        self, residual: Tensor, batches: Sequence[AttentionBatch], kv_cache: KVCache, rows: Tensor
    ) -> Tensor:
        self.num_runs += 1
        for layer, batch, cache in zip(self.layers, batches, kv_cache, strict=True):
            x, residual = layer(residual, batch, cache, rows if layer is self.layers[-1] else None)
        return x


def make_cache(dtype: torch.dtype, num_blocks: int = 40) -> list[tuple[Tensor, Tensor]]:
    size = (len(WINDOWS), 2, num_blocks, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    return [(layer[0], layer[1]) for layer in torch.zeros(size, dtype=dtype)]


def run(runner: object, model: Model, spans: Sequence[tuple[int, int]], cache: KVCache) -> Tensor:
    """A step over ``spans``, each a sequence of its own; looks at the last token of each."""
    generator = torch.Generator().manual_seed(len(spans))
    batches = [make_batch(spans, BLOCK_SIZE), make_batch(spans[::-1], BLOCK_SIZE)]
    residual = torch.randn(len(batches[0].positions), HIDDEN, generator=generator)
    rows = batches[0].query_starts[1:].long() - 1
    result: Tensor = runner(model.step, residual, batches, cache, rows)  # type: ignore[operator]
    return result.clone()


def one_by_one(
    step: object, residual: Tensor, batches: Sequence[AttentionBatch], kv_cache: KVCache, rows: Tensor
) -> Tensor:
    result: Tensor = step(residual, batches, kv_cache, rows)  # type: ignore[operator]
    return result


SPANS: list[list[tuple[int, int]]] = [
    [(0, 5)],
    [(0, 40), (0, 1), (0, 100)],
    [(5, 6)],
    [(40, 41), (1, 2), (100, 130), (0, 64)],
    [(0, 1)] * 9,
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_same_bits_as_one_by_one(ops: CpuOps, dtype: torch.dtype, num_threads: int) -> None:
    ops = make_ops(isa_of(ops), num_threads)
    model = Model(ops, dtype)
    runner, ours, theirs = ops.step_runner(), make_cache(dtype), make_cache(dtype)
    for spans in SPANS:
        assert torch.equal(run(runner, model, spans, ours), run(one_by_one, model, spans, theirs))
        assert all(
            torch.equal(a, b) for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y, strict=True)
        )
    assert model.num_runs == len(SPANS) + 1, "recorded once, then run without the model"


def test_a_larger_step_or_another_cache_is_recorded_again(ops: CpuOps) -> None:
    model, runner = Model(ops, torch.bfloat16), ops.step_runner()
    twin = copy.copy(model)
    cache = make_cache(torch.bfloat16)
    run(runner, model, [(0, 512)], cache)
    assert model.num_runs == 1
    for num_runs, spans in ((2, [(0, 513)]), (2, [(0, 3)])):
        assert torch.equal(
            run(runner, model, spans, cache), run(one_by_one, twin, spans, make_cache(torch.bfloat16))
        )
        assert model.num_runs == num_runs
    run(runner, model, [(0, 3)], make_cache(torch.bfloat16))
    assert model.num_runs == 3


def test_more_rows_to_look_at_than_tokens_are_recorded_again(ops: CpuOps) -> None:
    runner, cache, norm = ops.step_runner(), make_cache(torch.float32), torch.rand(HIDDEN)
    batches = [make_batch([(0, 4)], BLOCK_SIZE)]

    def step(residual: Tensor, batches: Sequence[AttentionBatch], kv_cache: KVCache, rows: Tensor) -> Tensor:
        return ops.take_rows(ops.rms_norm(residual, norm, 1e-5), rows)

    residual = torch.randn(4, HIDDEN)
    for rows in (torch.tensor([3]), torch.arange(4).repeat(300)):
        expected = one_by_one(step, residual, batches, cache, rows)
        assert torch.equal(runner(step, residual, batches, cache, rows), expected)


def test_a_kernel_without_memory_ends_the_step_with_an_error(ops: CpuOps) -> None:
    width = 33  # which is to be padded, in memory of the kernel's own
    packed = ops.pack_linear(torch.randn(1, width), None, torch.bfloat16)
    runner, cache, norm = ops.step_runner(), make_cache(torch.bfloat16), torch.rand(width)
    batches = [make_batch([(0, 4)], BLOCK_SIZE)]

    def step(residual: Tensor, batches: Sequence[AttentionBatch], kv_cache: KVCache, rows: Tensor) -> Tensor:
        return ops.take_rows(ops.linear(ops.rms_norm(residual, norm, 1e-5, torch.bfloat16), packed), rows)

    residual, rows = torch.ones(LARGE // 128, width), torch.tensor([3])
    expected = runner(step, residual, batches, cache, rows).clone()
    with no_large_memory(), pytest.raises(MemoryError, match="the kernels of a step"):
        runner(step, residual, batches, cache, rows)
    assert torch.equal(runner(step, residual, batches, cache, rows), expected)


def test_memory_is_used_again(ops: CpuOps, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    allocate = program._aligned_memory

    def note_size(num_bytes: int) -> NDArray[np.uint8]:
        sizes.append(num_bytes)
        return allocate(num_bytes)

    monkeypatch.setattr(program, "_aligned_memory", note_size)
    model = Model(ops, torch.bfloat16)
    run(ops.step_runner(), model, [(0, 5)], make_cache(torch.bfloat16))
    num_bytes_of_two = sum(sizes)
    sizes.clear()
    model.layers = model.layers[:1] * 6 + model.layers[1:]
    batches = [make_batch([(0, 5)], BLOCK_SIZE)] * len(model.layers)
    cache = [*make_cache(torch.bfloat16)[:1] * 6, *make_cache(torch.bfloat16)[1:]]
    ops.step_runner()(model.step, torch.randn(5, HIDDEN), batches, cache, torch.tensor([4]))
    assert 0 < num_bytes_of_two <= sum(sizes) < 1.2 * num_bytes_of_two


def test_a_step_that_asks_torch_for_something_runs_as_it_stands(ops: CpuOps) -> None:
    runner, cache = ops.step_runner(), make_cache(torch.bfloat16)
    batches = [make_batch([(0, 4)], BLOCK_SIZE)]

    def step(residual: Tensor, batches: Sequence[AttentionBatch], kv_cache: KVCache, rows: Tensor) -> Tensor:
        return ops.take_rows(residual * 2, rows)

    for _ in range(2):
        residual, rows = torch.randn(4, 8), torch.tensor([3, 1])
        assert torch.equal(runner(step, residual.clone(), batches, cache, rows), 2 * residual[rows])


def test_without_compiled_kernels_a_step_runs_as_it_stands() -> None:
    ops = CpuOps(NativeLibrary.missing())
    model, cache = Model(ops, torch.float32), make_cache(torch.float32)
    expected = run(one_by_one, model, [(0, 7)], cache)
    assert torch.equal(run(ops.step_runner(), model, [(0, 7)], make_cache(torch.float32)), expected)
