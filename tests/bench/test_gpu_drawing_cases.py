"""Cases of drawing use every configuration of theirs."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")

from bench.gpu_drawing_cases import drawing_cases
from tests.bench.gpu_starts import configurations_used, kernels_of

KERNELS = {
    "find_best", "collect", "settle_draw", "pick_logprobs", "add_biases", "penalize_and_mask", "note_tokens",
}  # fmt: skip


@pytest.mark.parametrize("architecture", ["sm_80", "sm_89", "sm_90", "gfx942"])
def test_every_configuration_is_used(architecture: str) -> None:
    used: set[Any] = configurations_used(architecture, drawing_cases)
    assert used == kernels_of(architecture, KERNELS)
