"""A draw settled by asking is the draw with a mask, and asks about few tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.kernels.draws import FILTERS, many_uniforms

from triolet.runtime.ranked_draw import MAX_ASKED, RankedDraw, floats
from triolet_kernels.cpu import CpuOps
from triolet_kernels.cpu.loader import NativeLibrary
from triolet_kernels.ops import DrawSettings, Ops
from triolet_kernels.reference import ReferenceOps

ALL_FILTERS: list[dict[str, Any]] = [
    *FILTERS, {"top_k": 50}, {"top_k": 50, "top_p": 0.95}, {"top_k": 200, "min_p": 0.01},
]  # fmt: skip


class Oracle:
    """Says what is allowed, and counts how many tokens it was asked about."""

    def __init__(self, allowed: NDArray[np.bool_]) -> None:
        self.allowed = allowed
        self.num_asked = 0

    def __call__(self, token_ids: Sequence[int]) -> list[bool]:
        self.num_asked += len(token_ids)
        return [bool(self.allowed[token_id]) for token_id in token_ids]


@pytest.fixture(params=["reference", "native"])
def ops(request: pytest.FixtureRequest) -> Ops:
    return ReferenceOps() if request.param == "reference" else CpuOps(NativeLibrary.open({}))


def ranked_draws(ops: Ops, logits: torch.Tensor, settings: DrawSettings) -> list[RankedDraw]:
    ranked = ops.rank(logits, settings, np.arange(len(logits)), MAX_ASKED)
    sums = np.pad(ranked.weights.astype(np.float64).cumsum(axis=1), ((0, 0), (1, 0)))
    return [
        RankedDraw(
            [token_id for token_id in ranked.token_ids[i].tolist() if token_id >= 0],
            floats(ranked.weights[i]),
            floats(sums[i]),
            float(ranked.totals[i]),
            float(settings.uniforms[i]),
            int(settings.top_k[i]),
            float(settings.top_p[i]),
            float(settings.min_p[i]),
        )
        for i in range(len(logits))
    ]


def settings_of(uniforms: list[float], temperature: float, filters: dict[str, Any]) -> DrawSettings:
    size = len(uniforms)
    return DrawSettings(
        temperatures=np.full(size, temperature),
        uniforms=np.array(uniforms),
        top_k=np.full(size, filters.get("top_k", 0)),
        top_p=np.full(size, filters.get("top_p", 1.0)),
        min_p=np.full(size, filters.get("min_p", 0.0)),
    )


def settle_all(
    ops: Ops, logits: torch.Tensor, settings: DrawSettings, allowed: torch.Tensor
) -> tuple[list[int | None], list[int], list[int]]:
    """Tokens by asking, those with a mask, and how many were asked about."""
    oracles = [Oracle(row) for row in allowed.numpy()]
    draws = ranked_draws(ops, logits, settings)
    settled = [draw.settle(oracle) for draw, oracle in zip(draws, oracles, strict=True)]
    bits = np.zeros((len(logits), -(-logits.shape[1] // 32) * 32), dtype=np.uint8)
    bits[:, : logits.shape[1]] = allowed.numpy()
    masks = np.packbits(bits, axis=1, bitorder="little").view(np.int32)
    drawn = ops.draw_masked(logits.clone(), settings, np.arange(len(logits)), masks)
    return settled, drawn.token_ids.tolist(), [oracle.num_asked for oracle in oracles]


@pytest.mark.parametrize("filters", ALL_FILTERS, ids=str)
@pytest.mark.parametrize("size", [60, 1000])
def test_what_is_settled_is_what_a_mask_gives(ops: Ops, filters: dict[str, Any], size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    num_rows = 24
    numbers = [0.0, 1 - 2.0**-53, *many_uniforms(num_rows - 2)]
    num_settled = 0
    for scale, share in ((0.05, 0.5), (2.0, 0.9), (2.0, 0.3), (6.0, 0.6), (6.0, 0.03)):
        logits = scale * torch.randn(num_rows, size, generator=generator)
        if scale == 2.0:
            logits = (4 * logits).round() / 4  # many ties
        allowed = torch.rand(num_rows, size, generator=generator) < share
        allowed[:, -1] = True
        settings = settings_of(numbers, 1.1, filters)
        settled, expected, num_asked = settle_all(ops, logits, settings, allowed)
        assert max(num_asked) <= MAX_ASKED
        for found, token_id in zip(settled, expected, strict=True):
            assert found in (None, token_id)
            num_settled += found is not None
    assert num_settled > 0


@pytest.mark.parametrize(
    ("filters", "most"), [({"top_k": 20}, 32), ({"min_p": 0.1}, 20), ({"top_k": 20, "top_p": 0.9}, 32)]
)
def test_few_tokens_are_asked_about(ops: Ops, filters: dict[str, Any], most: int) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(200, 5000, generator=generator)
    allowed = torch.rand(200, 5000, generator=generator) < 0.6
    settings = settings_of(many_uniforms(200), 1.0, filters)
    settled, expected, num_asked = settle_all(ops, logits, settings, allowed)
    assert np.mean([found == token for found, token in zip(settled, expected, strict=True)]) > 0.98
    assert np.mean(num_asked) <= most


def test_a_likely_token_needs_no_further_one(ops: Ops) -> None:
    logits = torch.zeros(1, 5000)
    logits[0, 77] = 20.0
    for filters in ALL_FILTERS:
        settled, _, num_asked = settle_all(
            ops, logits, settings_of([0.5], 1.0, filters), torch.ones(1, 5000, dtype=torch.bool)
        )
        assert settled == [77]
        assert num_asked == [2]


def test_a_hopeless_draw_is_given_up_early(ops: Ops) -> None:
    logits = torch.zeros(2, 5000)
    allowed = torch.ones(2, 5000, dtype=torch.bool)
    allowed[1, :4000] = False
    filters = {"top_p": 0.95}
    settled, _, num_asked = settle_all(ops, logits, settings_of([0.5, 0.5], 1.0, filters), allowed)
    assert settled == [None, None]
    assert max(num_asked) <= 16
    logits[:, 4999] = -1.0
    allowed[:] = False
    allowed[:, 4999] = True
    settled, _, num_asked = settle_all(ops, logits, settings_of([0.5, 0.5], 1.0, {"top_k": 5}), allowed)
    assert settled == [None, None]
    assert max(num_asked) <= 16


def test_weights_too_small_for_a_number_settle_nothing(ops: Ops) -> None:
    logits = torch.zeros(1, 300)
    logits[0, 5] = 1e4
    allowed = torch.ones(1, 300, dtype=torch.bool)
    allowed[0, 5] = False
    settled, _, _ = settle_all(ops, logits, settings_of([0.5], 1.0, {"top_k": 3}), allowed)
    assert settled == [None]
