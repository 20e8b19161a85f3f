"""Cases of linear layers use every configuration of theirs."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")

from bench.gpu_linear_cases import linear_cases
from tests.bench.gpu_starts import configurations_used, kernels_of

KERNELS = {
    "add_shared_expert",
    "linear",
    "quantized_row",
    "sum_segments",
    "decode_rows",
    "choose_experts",
    "expert_linear",
    "round_rows",
    "scaled_linear",
    "sort_pairs",
    "sum_experts",
}


@pytest.mark.parametrize("architecture", ["sm_80", "sm_89", "sm_90", "gfx942"])
def test_every_configuration_is_used(architecture: str) -> None:
    used: set[Any] = configurations_used(architecture, linear_cases)
    assert used == kernels_of(architecture, KERNELS)
