"""The reference of a mixture's linear layers, beside float64."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.tolerance import assert_close

from triolet_kernels.reference import ReferenceOps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_row_is_multiplied_by_the_weight_of_its_expert(dtype: torch.dtype) -> None:
    ops, weight, x = ReferenceOps(), torch.randn(4, 5, 8), torch.randn(6, 8).to(dtype)
    starts, factors = torch.tensor([0, 2, 2, 5, 6], dtype=torch.int32), torch.rand(6)
    experts = [0, 0, 2, 2, 2, 3]
    expected = torch.stack(
        [weight[expert].double() @ row.double() for expert, row in zip(experts, x, strict=True)]
    )
    packed = ops.pack_experts(weight, dtype)
    assert_close(ops.expert_linear(x, packed, starts), expected.to(dtype))
    weighted = ops.expert_linear(x, packed, starts, factors)
    assert_close(weighted, (expected * factors[:, None]).to(dtype))
