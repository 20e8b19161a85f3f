"""A mixture of experts on the CPU: beside the reference, with the same bits in any company, in programs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from tests.kernels.batches import make_batch
from tests.kernels.cpu.variants import isa_of, make_ops
from tests.kernels.memory_limit import LARGE, no_large_memory
from tests.kernels.quantized import quantize
from tests.kernels.routing import assert_same_routing, starts_of, tied_logits
from tests.kernels.tolerance import DTYPES, assert_close
from torch import Tensor

from triolet_kernels.cpu import CpuOps
from triolet_kernels.cpu.loader import NativeLibrary
from triolet_kernels.expert_ops import Routing
from triolet_kernels.ops import AttentionBatch, KVCache
from triolet_kernels.quant import QuantTensor
from triolet_kernels.reference import ReferenceOps, experts

KINDS = ["dense", "Q4_0", "Q4_1", "Q8_0", "Q5_1"]
WIDTH, HEIGHT = 96, 70


def make_weights(kind: str, num_experts: int, height: int = HEIGHT) -> list[Tensor | QuantTensor]:
    """Of scales that differ from one expert to the next."""
    values = [torch.randn(height, WIDTH) * 2.0**expert / 32 for expert in range(num_experts)]
    return [value if kind == "dense" else quantize(value, kind) for value in values]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_threads", [1, 3])
def test_bits_are_those_of_each_expert_s_layer_alone(
    ops: CpuOps, dtype: torch.dtype, kind: str, num_threads: int
) -> None:
    ops = make_ops(isa_of(ops), num_threads)
    sizes = [0, 17, 1, 0, 40, 3]
    weights, starts = make_weights(kind, len(sizes)), starts_of(sizes)
    x = torch.randn(sum(sizes), WIDTH).to(dtype)
    actual = ops.expert_linear(x, ops.pack_experts(weights, dtype), starts)
    for weight, first, end in zip(weights, starts, starts[1:], strict=False):
        alone = ops.linear(x[first:end].clone(), ops.pack_linear(weight, None, dtype))
        assert torch.equal(actual[first:end], alone)


@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_reference(ops: CpuOps, kind: str) -> None:
    weights, starts, x = make_weights(kind, 3), starts_of([5, 0, 30]), torch.randn(35, WIDTH)
    reference = ReferenceOps()
    expected = reference.expert_linear(x, reference.pack_experts(weights, x.dtype), starts)
    assert_close(ops.expert_linear(x, ops.pack_experts(weights, x.dtype), starts), expected)


def test_experts_of_more_than_one_format_are_widened(ops: CpuOps) -> None:
    weights = [*make_weights("Q4_0", 1), *make_weights("Q8_0", 1), *make_weights("dense", 1)]
    x, starts = torch.randn(9, WIDTH).bfloat16(), starts_of([2, 4, 3])
    reference = ReferenceOps()
    expected = reference.expert_linear(x, reference.pack_experts(weights, x.dtype), starts)
    assert_close(ops.expert_linear(x, ops.pack_experts(weights, x.dtype), starts), expected)


@pytest.mark.parametrize("is_normalized", [True, False])
@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "num_chosen"), [(1, 1, 1), (7, 8, 2), (40, 13, 13), (900, 128, 8)]
)
def test_tokens_go_where_the_reference_has_them(
    ops: CpuOps, num_tokens: int, num_experts: int, num_chosen: int, is_normalized: bool
) -> None:
    """The router's weight is the identity: logits are what goes in, ties and all."""
    logits, router = tied_logits(num_tokens, num_experts), ops.pack_router(torch.eye(num_experts))
    for x in (logits, logits.bfloat16()):
        routed = make_ops(isa_of(ops), 3).route(x, router, num_chosen, is_normalized=is_normalized)
        assert_same_routing(routed, experts.choose(x.float(), num_chosen, is_normalized=is_normalized))


@pytest.mark.parametrize("is_normalized", [True, False])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_goes_somewhere(ops: CpuOps, value: float, is_normalized: bool) -> None:
    x = torch.randn(3, WIDTH)
    x[1] = value
    router = ops.pack_router(torch.randn(6, WIDTH))
    routing = ops.route(x, router, 4, is_normalized=is_normalized)
    assert sorted(routing.pairs.flatten().tolist()) == list(range(12))
    assert routing.weights.isnan().any(dim=1).tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 70, 1500])
def test_what_experts_make_of_a_token_is_added_up(ops: CpuOps, dtype: torch.dtype, size: int) -> None:
    routing = experts.choose(tied_logits(9, 5), 3, is_normalized=True)
    x = torch.randn(27, size).to(dtype)
    assert_close(ops.sum_experts(x, routing), ReferenceOps().sum_experts(x, routing))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 70, 1500])
def test_a_shared_expert_counts_what_its_gate_says(ops: CpuOps, dtype: torch.dtype, size: int) -> None:
    total, shared, x = (torch.randn(9, columns).to(dtype) for columns in (size, size, 64))
    x[:2] *= 1000
    gate, reference = torch.randn(1, 64), ReferenceOps()
    expected = total.clone()
    reference.add_shared_expert(expected, shared, x, reference.pack_router(gate))
    ops.add_shared_expert(total, shared, x, ops.pack_router(gate))
    assert_close(total, expected)


def test_a_gate_that_is_not_a_number_shows(ops: CpuOps) -> None:
    total, x = torch.zeros(3, 40), torch.ones(3, 64)
    x[1] = float("nan")
    ops.add_shared_expert(total, torch.ones(3, 40), x, ops.pack_router(torch.ones(1, 64)))
    assert total.isnan().all(dim=1).tolist() == [False, True, False]


class Mixture:
    """The feed-forward networks of a layer."""

    def __init__(self, ops: CpuOps, dtype: torch.dtype, kind: str) -> None:
        self.ops = ops
        self.norm = torch.rand(WIDTH)
        self.dtype = dtype
        self.router = ops.pack_router(torch.randn(6, WIDTH))
        self.gate = ops.pack_router(torch.randn(1, WIDTH))
        self.gate_up = ops.pack_experts(make_weights(kind, 6, 2 * WIDTH), dtype)
        self.down = ops.pack_experts(make_weights(kind, 6, WIDTH), dtype)

    def __call__(self, x: Tensor) -> Tensor:
        ops = self.ops
        routing: Routing = ops.route(x, self.router, 2, is_normalized=True)
        rows = ops.take_rows(x, routing.tokens)
        rows = ops.silu_mul(ops.expert_linear(rows, self.gate_up, routing.expert_starts))
        total = ops.sum_experts(ops.expert_linear(rows, self.down, routing.expert_starts), routing)
        ops.add_shared_expert(total, x, x, self.gate)
        return total

    def step(
        self, residual: Tensor, batches: Sequence[AttentionBatch], kv_cache: KVCache, rows: Tensor
    ) -> Tensor:
        x = self(self.ops.rms_norm(residual, self.norm, 1e-5, self.dtype))
        return self(self.ops.take_rows(x, rows))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_token_s_bits_do_not_depend_on_company(ops: CpuOps, dtype: torch.dtype, kind: str) -> None:
    mixture, x = Mixture(ops, dtype, kind), torch.randn(60, WIDTH).to(dtype)
    together = mixture(x)
    for start, end in ((0, 1), (59, 60), (5, 30), (7, 9)):
        assert torch.equal(mixture(x[start:end].clone()), together[start:end])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_with_experts_is_recorded(ops: CpuOps, dtype: torch.dtype, kind: str) -> None:
    mixture, runner, num_runs = Mixture(ops, dtype, kind), ops.step_runner(), 0
    cache = [(torch.zeros(1, dtype=dtype),) * 2]

    def step(residual: Tensor, batches: Sequence[AttentionBatch], kv_cache: KVCache, rows: Tensor) -> Tensor:
        nonlocal num_runs
        num_runs += 1
        return mixture.step(residual, batches, kv_cache, rows)

    for num_tokens in (5, 1, 300, 2):
        batches = [make_batch([(0, num_tokens)], 32)]
        residual, rows = torch.randn(num_tokens, WIDTH), torch.arange(0, num_tokens, 2)
        expected = mixture.step(residual, batches, cache, rows)
        assert torch.equal(runner(step, residual, batches, cache, rows), expected)
    assert num_runs == 1


def test_without_compiled_kernels_it_is_the_reference() -> None:
    ops, reference = CpuOps(NativeLibrary.missing()), ReferenceOps()
    x, router, starts = torch.randn(5, WIDTH), torch.randn(4, WIDTH), starts_of([3, 7])
    weights = make_weights("Q8_0", 2)
    routing = reference.route(x, router, 2, is_normalized=True)
    assert_same_routing(ops.route(x, ops.pack_router(router), 2, is_normalized=True), routing)
    rows = torch.randn(10, WIDTH)
    expected = reference.expert_linear(rows, reference.pack_experts(weights, x.dtype), starts)
    assert torch.equal(ops.expert_linear(rows, ops.pack_experts(weights, x.dtype), starts), expected)
    total, expected = ops.sum_experts(rows, routing), reference.sum_experts(rows, routing)
    assert torch.equal(total, expected)
    ops.add_shared_expert(total, x, x, ops.pack_router(router[:1]))
    reference.add_shared_expert(expected, x, x, router[:1])
    assert torch.equal(total, expected)


def test_no_memory_is_an_error(ops: CpuOps) -> None:
    packed = ops.pack_experts([torch.randn(1, 33)], torch.bfloat16)  # which is padded, in memory of its own
    x, starts = torch.randn(LARGE // 128, 33).bfloat16(), starts_of([LARGE // 128])
    with no_large_memory(), pytest.raises(MemoryError, match="expert_linear"):
        ops.expert_linear(x, packed, starts)
