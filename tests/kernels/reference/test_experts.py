"""The reference of a mixture of experts, beside float64 and beside what ``transformers`` does."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from tests.kernels.quantized import quantize
from tests.kernels.routing import starts_of, tied_logits
from tests.kernels.tolerance import assert_close

from triolet_kernels.reference import ReferenceOps
from triolet_kernels.reference.experts import choose


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_row_is_multiplied_by_the_weight_of_its_expert(dtype: torch.dtype) -> None:
    ops, weights, x = ReferenceOps(), list(torch.randn(4, 5, 8)), torch.randn(6, 8).to(dtype)
    experts = [0, 0, 2, 2, 2, 3]
    expected = torch.stack(
        [weights[expert].double() @ row.double() for expert, row in zip(experts, x, strict=True)]
    )
    packed = ops.pack_experts(weights, dtype)
    assert_close(ops.expert_linear(x, packed, starts_of([2, 0, 3, 1])), expected.to(dtype))


def test_quantised_experts_are_dequantised() -> None:
    ops, weights, x = ReferenceOps(), torch.randn(2, 4, 32), torch.randn(3, 32)
    quantised = [quantize(weight, "Q8_0") for weight in weights]
    dense = [weight.dequantize() for weight in quantised]
    starts = starts_of([1, 2])
    assert torch.equal(
        ops.expert_linear(x, ops.pack_experts(quantised, torch.float32), starts),
        ops.expert_linear(x, ops.pack_experts(dense, torch.float32), starts),
    )


@pytest.mark.parametrize("is_normalized", [True, False])
def test_the_experts_of_the_highest_logits_are_chosen(is_normalized: bool) -> None:
    logits = torch.randn(9, 7)
    routing = choose(logits, 3, is_normalized=is_normalized)
    shares, experts = logits.softmax(dim=-1).topk(3)  # as transformers does
    if is_normalized:
        shares = shares / shares.sum(dim=-1, keepdim=True)
    torch.testing.assert_close(routing.weights, shares)
    pairs = routing.pairs.long()
    assert sorted(pairs.flatten().tolist()) == list(range(27))
    assert torch.equal(routing.tokens[pairs], torch.arange(9)[:, None].expand(9, 3))
    starts = routing.expert_starts
    assert (starts[experts] <= pairs).all()
    assert (pairs < starts[experts + 1]).all()
    by_expert = [routing.tokens[first:end] for first, end in pairwise(starts)]
    assert all((tokens.diff() > 0).all() for tokens in by_expert)


def test_of_equal_experts_the_first_are_chosen() -> None:
    routing = choose(torch.zeros(2, 5), 2, is_normalized=True)
    assert routing.expert_starts.tolist() == [0, 2, 4, 4, 4, 4]
    assert routing.weights.tolist() == [[0.5, 0.5]] * 2
    routing = choose(torch.tensor([[1.0, 3.0, 3.0, 2.0]]), 2, is_normalized=False)
    assert routing.expert_starts.tolist() == [0, 0, 1, 2, 2]


def test_a_router_is_multiplied_in_float32() -> None:
    ops, x, weight = ReferenceOps(), torch.randn(5, 64).bfloat16(), torch.randn(6, 64).bfloat16()
    routing = ops.route(x, ops.pack_router(weight), 6, is_normalized=False)
    logits = (x.double() @ weight.double().T).float()
    assert torch.equal(routing.pairs, choose(logits, 6, is_normalized=False).pairs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_experts_make_of_a_token_is_added_up(dtype: torch.dtype) -> None:
    routing = choose(tied_logits(5, 6), 4, is_normalized=True)
    x = torch.randn(20, 10).to(dtype)
    expected = torch.stack(
        [
            sum(
                (weight * x[pair].double() for weight, pair in zip(weights, pairs, strict=True)),
                torch.zeros(10),
            )
            for weights, pairs in zip(routing.weights.double(), routing.pairs, strict=True)
        ]
    )
    assert_close(ReferenceOps().sum_experts(x, routing), expected.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_shared_expert_counts_what_its_gate_says(dtype: torch.dtype) -> None:
    ops = ReferenceOps()
    total, shared, x, gate = (torch.randn(shape).to(dtype) for shape in ((5, 10), (5, 10), (5, 64), (1, 64)))
    gates = 1 / (1 + (-(x.double() @ gate.double().T)).exp())
    expected = (total.double() + gates * shared.double()).to(dtype)
    ops.add_shared_expert(total, shared, x, ops.pack_router(gate))
    assert_close(total, expected)
