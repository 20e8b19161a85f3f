"""Tokens of constrained rows have the distribution that a mask gives, whether one was made or not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.kernels.draws import FILTERS, assert_fits, exact_probabilities
from tests.triolet.runtime.fake_constraints import FakeConstraints
from tests.triolet.runtime.rows import make_row
from torch import Tensor

from triolet.plan import PlanRow
from triolet.request import LogitsAdjustments
from triolet.runtime.grammar_draws import draw_held
from triolet.runtime.grammar_masks import GrammarMasks
from triolet.runtime.sampler import SampledRow, Sampler
from triolet_kernels.ops import DrawnTokens
from triolet_kernels.reference import ReferenceOps

VOCAB_SIZE = 70
LIKELY, UNLIKELY = (3, 30, 64), (2, 31, 69)


class CountingConstraints(FakeConstraints):
    num_masks = 0

    def fill_mask(self, slot: int, mask: NDArray[np.int32]) -> None:
        self.num_masks += 1
        super().fill_mask(slot, mask)


def bound_row(slot: int, allowed: tuple[int, ...], **params: Any) -> PlanRow:
    adjustments = LogitsAdjustments(grammar="|".join(map(str, allowed)))
    return make_row((0,), slot=slot, history=(0,), adjustments=adjustments, **params)


def make_logits() -> Tensor:
    logits = torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(3))
    logits[list(LIKELY)] += 3
    logits[list(UNLIKELY)] -= 2
    return logits


def sample(
    rows: list[PlanRow], logits: Tensor, mode: Any = "raw"
) -> tuple[list[SampledRow], CountingConstraints]:
    constraints = CountingConstraints()
    sampler = Sampler(VOCAB_SIZE, logprobs_mode=mode, constraints=constraints)
    sampler.begin(rows)
    return sampler.sample(logits.expand(len(rows), -1), rows, torch.clone), constraints


@pytest.mark.parametrize("allowed", [LIKELY, UNLIKELY, LIKELY + UNLIKELY], ids=["likely", "unlikely", "both"])
@pytest.mark.parametrize("filters", [{}, *FILTERS], ids=str)
def test_draws_have_the_distribution_under_the_mask(
    filters: dict[str, Any], allowed: tuple[int, ...]
) -> None:
    logits = make_logits()
    rows = [bound_row(seed, allowed, temperature=0.9, seed=seed, **filters) for seed in range(1_500)]
    sampled, _ = sample(rows, logits)
    masked = np.full(VOCAB_SIZE, -np.inf, dtype=np.float32)
    masked[list(allowed)] = logits.numpy()[list(allowed)]
    probabilities = {
        token_id: probability
        for token_id, probability in exact_probabilities(masked, 0.9, **filters).items()
        if probability > 0
    }
    assert_fits([row.token_ids[0] for row in sampled], probabilities)


def test_masks_are_made_where_they_may_make_a_difference_only() -> None:
    best = int(make_logits().argmax())
    settled: list[dict[str, Any]] = [
        {}, {"temperature": 0.01}, {"temperature": 0.01, "top_p": 0.9}, {"temperature": 2.0, "top_k": 1},
    ]  # fmt: skip
    rows = [bound_row(slot, (best, 2), **params) for slot, params in enumerate(settled)]
    sampled, constraints = sample(rows, make_logits())
    assert [row.token_ids for row in sampled] == [(best,)] * len(rows)
    assert constraints.num_masks == 0
    sampled, constraints = sample([bound_row(1, (2,))], make_logits())
    assert sampled[0].token_ids == (2,)
    assert constraints.num_masks == 1


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}], ids=str)
def test_a_token_depends_neither_on_company_nor_on_what_is_shown(filters: dict[str, Any]) -> None:
    rows = [
        bound_row(
            slot, LIKELY if slot % 2 else UNLIKELY, temperature=1.1, seed=slot, num_logprobs=2, **filters
        )
        for slot in range(24)
    ]
    together, _ = sample(rows, make_logits())
    processed, constraints = sample(rows, make_logits(), "processed")
    assert constraints.num_masks == len(rows)
    assert [row.token_ids for row in processed] == [row.token_ids for row in together]
    for row, entry in zip(rows, together, strict=True):
        assert sample([row], make_logits())[0] == [entry]
    for entry in processed:
        assert entry.logprobs is not None
        (shown,) = entry.logprobs
        assert set(shown.token_ids) <= {*LIKELY, *UNLIKELY}


@pytest.mark.parametrize("place", [2, 5])
def test_a_mask_does_not_hide_logits_that_are_not_finite(place: int) -> None:
    logits = make_logits()
    logits[place] = torch.nan
    (sampled,), _ = sample([bound_row(0, UNLIKELY)], logits)
    assert sampled.error == "the model's logits are not finite"


@pytest.mark.parametrize("params", [{}, {"temperature": 0.7}], ids=["greedy", "random"])
def test_a_few_more_tokens_are_tried_before_a_mask_is_made(params: dict[str, Any]) -> None:
    ranked = make_logits().argsort(descending=True).tolist()
    rows = [bound_row(slot, tuple(ranked[2:]), seed=slot, **params) for slot in range(50)]
    sampled, constraints = sample(rows, make_logits())
    assert not {row.token_ids[0] for row in sampled} & set(ranked[:2])
    assert constraints.num_masks <= 2


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_a_mask_made_beforehand_gives_the_same_tokens(filters: dict[str, Any]) -> None:
    rows = [bound_row(slot, LIKELY + UNLIKELY, seed=slot, temperature=1.3, **filters) for slot in range(40)]
    drawn = []
    for seconds in (0.0, 1.0):
        constraints = CountingConstraints()
        masks = GrammarMasks(VOCAB_SIZE, constraints, clock=count(0.0, seconds).__next__)
        masks.begin(rows)
        masks.check(rows, [None] * 40, [False] * 40, lambda positions: [[] for _ in positions])
        assert {masks.has_quick_mask(row.slot) for row in rows} == {seconds == 0}
        logits = make_logits().repeat(40, 1)
        tokens, errors = draw_held(masks, ReferenceOps(), logits, rows, is_processed=False)
        assert not errors
        drawn.append((tokens.token_ids.tolist(), constraints.num_masks))
    assert drawn[0][0] == drawn[1][0]
    assert drawn[0][1] == 80 >= drawn[1][1]


@pytest.mark.parametrize("filters", [{}, {"top_k": 5}], ids=str)
def test_the_only_token_is_not_said_where_something_else_forbids_it(filters: dict[str, Any]) -> None:
    class OnlyOneConstraints(CountingConstraints):
        def first_allowed(self, slot: int, token_ids: Sequence[int]) -> int | None:
            return 2

        def are_allowed(self, slot: int, token_ids: Sequence[int]) -> list[bool]:
            return [token_id == 2 for token_id in token_ids]

    def drawn_from(logits: Tensor) -> DrawnTokens:
        rows = [bound_row(0, (2,), temperature=1.0, **filters)]
        masks = GrammarMasks(VOCAB_SIZE, OnlyOneConstraints())
        masks.begin(rows)
        return draw_held(masks, ReferenceOps(), logits[None].clone(), rows, is_processed=False)[0]

    logits = make_logits()
    assert drawn_from(logits).token_ids.tolist() == [2]
    assert np.isfinite(drawn_from(logits).highest).all()
    logits[2] = -torch.inf
    assert drawn_from(logits).highest.tolist() == [-np.inf]
    logits[5] = torch.nan
    assert not np.isfinite(drawn_from(logits).highest).any()


def test_rows_with_and_without_grammars_are_drawn_side_by_side() -> None:
    filters: list[dict[str, Any]] = [{}, {"top_k": 4}, {"top_p": 0.7}]
    rows = [
        bound_row(slot, LIKELY, seed=slot, temperature=1.0, **filters[slot % 3])
        if slot % 2
        else make_row((0,), slot=slot, history=(0,), seed=slot, temperature=1.0, **filters[slot % 3])
        for slot in range(24)
    ]
    together, _ = sample(rows, make_logits())
    for row, entry in zip(rows, together, strict=True):
        assert sample([row], make_logits())[0] == [entry]


def test_a_grammar_that_leaves_nothing_likely_is_named() -> None:
    logits = make_logits()
    logits[list(UNLIKELY)] = -torch.inf
    (sampled,), _ = sample([bound_row(0, UNLIKELY)], logits)
    assert (
        sampled.error
        == "structured_outputs: no token is left to choose from: structured_outputs forbid every one"
    )
