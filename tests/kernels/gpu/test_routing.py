"""The choice of experts on a GPU, and the sum of what they make, beside the reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.gpu.interpreted import interpreted_ops
from tests.kernels.routing import assert_same_routing, tied_logits
from tests.kernels.tolerance import assert_close

from triolet_kernels.gpu import GpuOps
from triolet_kernels.reference import ReferenceOps, experts


def route(ops: GpuOps | ReferenceOps, x: torch.Tensor, router: torch.Tensor, num_chosen: int = 2) -> object:
    return ops.route(x, ops.pack_router(router), num_chosen, is_normalized=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_normalized", [True, False])
@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "num_chosen"), [(1, 1, 1), (7, 8, 2), (40, 13, 13), (300, 128, 8)]
)
def test_tokens_go_where_the_reference_has_them(
    num_tokens: int, num_experts: int, num_chosen: int, is_normalized: bool
) -> None:
    logits = tied_logits(num_tokens, num_experts)
    expected = experts.choose(logits, num_chosen, is_normalized=is_normalized)
    routed = interpreted_ops()._routing.route(logits, num_chosen, is_normalized=is_normalized)
    assert_same_routing(routed, expected)


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 30), st.integers(1, 20), st.data())
def test_any_sizes(num_tokens: int, num_experts: int, data: st.DataObject) -> None:
    num_chosen = data.draw(st.integers(1, num_experts))
    logits = tied_logits(num_tokens, num_experts)
    routed = interpreted_ops()._routing.route(logits, num_chosen, is_normalized=False)
    assert_same_routing(routed, experts.choose(logits, num_chosen, is_normalized=False))


def test_logits_are_computed_in_float32() -> None:
    x, router = torch.randn(9, 64).bfloat16(), torch.randn(5, 64).bfloat16()
    expected = route(ReferenceOps(), x, router)
    assert_same_routing(route(interpreted_ops(), x, router), expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_normalized", [True, False])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_goes_somewhere(value: float, is_normalized: bool) -> None:
    logits = torch.randn(3, 6)
    logits[1] = value
    routing = interpreted_ops()._routing.route(logits, 4, is_normalized=is_normalized)
    assert sorted(routing.pairs.flatten().tolist()) == list(range(12))
    assert routing.weights.isnan().any(dim=1).tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1, 70, 1500])
def test_what_experts_make_of_a_token_is_added_up(dtype: torch.dtype, size: int) -> None:
    routing = experts.choose(tied_logits(9, 5), 3, is_normalized=True)
    x = torch.randn(27, size).to(dtype)
    expected = ReferenceOps().sum_experts(x, routing)
    assert_close(interpreted_ops().sum_experts(x, routing), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1, 70, 1500])
def test_a_shared_expert_counts_what_its_gate_says(dtype: torch.dtype, size: int) -> None:
    total, shared, x = (torch.randn(9, columns).to(dtype) for columns in (size, size, 64))
    x[:2] *= 1000
    ops, gate, reference = interpreted_ops(), torch.randn(1, 64), ReferenceOps()
    expected = total.clone()
    reference.add_shared_expert(expected, shared, x, reference.pack_router(gate))
    ops.add_shared_expert(total, shared, x, ops.pack_router(gate))
    assert_close(total, expected)


def test_a_gate_that_is_not_a_number_shows() -> None:
    ops, total, x = interpreted_ops(), torch.zeros(3, 40), torch.ones(3, 64)
    x[1] = float("nan")
    ops.add_shared_expert(total, torch.ones(3, 40), x, ops.pack_router(torch.ones(1, 64)))
    assert total.isnan().all(dim=1).tolist() == [False, True, False]
