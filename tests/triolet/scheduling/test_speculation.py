from __future__ import annotations

import random
from dataclasses import replace

import pytest

from triolet.args import Speculation
from triolet.plan import PlanRow, StepPlan
from triolet.request import Request
from triolet.scheduling.speculation import (
    MIN_BREAK_EVEN,
    NO_DRAFT,
    PAUSE,
    Draft,
    SequenceSpeculation,
    Speculator,
)
from triolet.scheduling.step_cost import USUAL_RATIO

REPETITIVE = [1, 2, 3, 4] * 5
WEAK = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1]
"""Ends with a token that has been there once before."""


def start(kind: Speculation = "ngram", max_length: int = 8) -> SequenceSpeculation:
    speculation = Speculator(kind, max_length).start()
    assert speculation is not None
    return speculation


def test_without_speculation_nothing_is_started() -> None:
    assert Speculator("off", 4).start() is None


@pytest.mark.parametrize("kind", ["ngram", "suffix"])
def test_guesses_are_looked_up(kind: Speculation) -> None:
    assert start(kind).propose(REPETITIVE, 3, 0.2) == Draft(3, (1, 2, 3))


def test_a_draft_model_is_only_told_how_many() -> None:
    assert start("draft").propose(REPETITIVE, 3, 0.2) == Draft(3)


def test_no_guess_is_longer_than_there_is_room() -> None:
    assert start().propose(REPETITIVE, 0, 0.2) == NO_DRAFT
    speculator = Speculator("suffix", 4)
    assert speculator.propose(start("suffix"), REPETITIVE, 9, 0.2).num_tokens == 4


@pytest.mark.parametrize("kind", ["ngram", "suffix"])
def test_a_weak_match_is_not_followed_far(kind: Speculation) -> None:
    assert start(kind).propose(WEAK, 8, 0.1) == Draft(2, (2, 3))
    assert start(kind).propose(REPETITIVE, 8, 0.1).num_tokens == 8


def test_what_never_pays_is_not_guessed() -> None:
    assert start().propose(REPETITIVE, 8, 1.2) == NO_DRAFT
    assert start("draft").propose(REPETITIVE, 8, 1.2) == NO_DRAFT


def test_guesses_get_shorter_as_they_are_wrong_and_longer_as_they_are_right() -> None:
    speculation = start("draft")
    lengths = []
    for _ in range(6):
        speculation.gain = 1.0
        lengths.append(speculation.propose(REPETITIVE, 8, 0.25).num_tokens)
        speculation.record(4, 0)
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] < lengths[0]
    for _ in range(20):
        speculation.record(4, 4)
    assert speculation.gain > 1
    assert speculation.propose(REPETITIVE, 8, 0.25).num_tokens == 8


def test_a_guess_must_be_surer_in_a_larger_step() -> None:
    speculator = Speculator("ngram", 4)
    shares = [speculator.break_even(num_sequences) for num_sequences in (1, 8, 64, 512)]
    assert shares == sorted(shares)
    assert shares[0] == pytest.approx(1 / (1 + USUAL_RATIO))
    assert shares[-1] > 0.98
    assert Speculator("draft", 4).break_even(1) > shares[0]


def test_where_nothing_is_gained_it_is_looked_for_now_and_then() -> None:
    speculation = start()
    guesses = []
    for step in range(3000):
        draft = speculation.propose(REPETITIVE, 4, 0.25)
        if draft.num_tokens:
            guesses.append(step)
            speculation.record(draft.num_tokens, 0)
    assert 10 < len(guesses) < 3000 / PAUSE + 50
    assert guesses[-1] - guesses[-2] >= PAUSE


def test_what_pays_again_is_taken_up_again() -> None:
    speculation = start()
    while speculation.is_due:
        speculation.propose(REPETITIVE, 4, 0.25)
        speculation.record(4, 0)
    num_guesses = 0
    for _ in range(500):
        draft = speculation.propose(REPETITIVE, 4, 0.25)
        if draft.num_tokens:
            num_guesses += 1
            speculation.record(draft.num_tokens, draft.num_tokens)
    assert num_guesses > 400


def test_a_match_that_misleads_is_not_trusted_any_more() -> None:
    speculation = start()
    for _ in range(20):
        speculation.gain = 1.0
        speculation.propose(WEAK, 1, 0.1)
        speculation.record(1, 0)
    speculation.gain = 1.0
    assert speculation.propose(WEAK, 4, 0.1) == NO_DRAFT
    assert speculation.propose(REPETITIVE, 4, 0.1).num_tokens == 4


def test_a_new_sequence_starts_from_what_the_others_have_seen() -> None:
    speculator = Speculator("ngram", 4)
    speculation = speculator.start()
    assert speculation is not None
    for _ in range(200):
        speculation.gain = 1.0
        speculator.propose(speculation, WEAK, 4, 0.0)
        speculator.record(speculation, 4, 0)
    late = speculator.start()
    assert late is not None
    assert late.propose(WEAK, 4, speculator.break_even(1)) == NO_DRAFT
    assert late.propose(REPETITIVE, 4, speculator.break_even(1)).num_tokens == 4
    assert (speculator.num_draft_tokens, speculator.num_accepted_tokens) == (800, 0)


@pytest.mark.parametrize(("chance", "is_on"), [(0.05, False), (0.7, True)])
def test_it_settles_on_what_pays(chance: float, is_on: bool) -> None:
    """Each guess is right with this chance, and a quarter of them pays."""
    generator = random.Random(4)
    speculation = start("draft")
    num_guesses = 0
    for _ in range(500):
        draft = speculation.propose(REPETITIVE, 4, 0.25)
        if draft.num_tokens:
            num_guesses += 1
            right = [generator.random() < chance for _ in range(draft.num_tokens)]
            speculation.record(draft.num_tokens, [*right, False].index(False))
    assert num_guesses > 400 if is_on else num_guesses < 50


def test_looking_where_nothing_is_found_ends_as_well() -> None:
    speculation = start()
    num_looks = 0
    for length in range(1, 1000):
        num_looks += speculation.is_due
        assert speculation.propose(range(length), 4, 0.1) == NO_DRAFT
    assert num_looks < 1000 / PAUSE + 100


def test_what_guesses_cost_is_weighed_against_what_they_gain() -> None:
    dear, cheap = start(), start()
    for speculation, break_even in ((dear, 0.6), (cheap, 0.1)):
        for _ in range(200):
            speculation.acceptance = start().acceptance
            if speculation.propose(REPETITIVE, 4, break_even).num_tokens:
                speculation.record(4, 2)
    assert cheap.gain > 1
    assert not dear.gain > 0.03


def test_what_pays_is_learnt_from_the_steps() -> None:
    speculator = Speculator("ngram", 4)
    for number in range(200):
        num_guesses = number % 5
        speculator.observe(plan_of(num_guesses), 0.001 * num_guesses + 0.005)
        speculator.observe(prompt_of(500), 9.0)
    assert speculator.break_even(1) == pytest.approx(1 / 5, rel=0.1)


def test_a_guess_that_costs_nothing_is_still_not_made_at_random() -> None:
    speculator = Speculator("ngram", 4)
    for number in range(200):
        speculator.observe(plan_of(number % 5), 0.005)
    assert speculator.break_even(1) == MIN_BREAK_EVEN


def test_guesses_fill_up_the_rows_that_are_computed_together() -> None:
    speculator = Speculator("suffix", 8, row_group=32)
    rooms = [speculator.room(num_sequences) for num_sequences in (1, 3, 4, 16, 31, 32, 33, 64)]
    assert rooms == [8, 24, 28, 16, 1, 0, 31, 0]
    assert Speculator("suffix", 8).room(32) == 256


def plan_of(num_guesses: int) -> StepPlan:
    row = PlanRow(
        request=Request(request_id=0, prompt_token_ids=(1,), max_tokens=9, seed=0), slot=0, start=5,
        num_tokens=1 + num_guesses, token_ids=(1,) * (1 + num_guesses), first_new_block=0,
        new_block_ids=((),), is_sampled=True, num_draft_tokens=num_guesses,
    )  # fmt: skip
    return StepPlan(step_id=0, rows=(row,))


def prompt_of(num_tokens: int) -> StepPlan:
    (row,) = plan_of(0).rows
    return StepPlan(step_id=0, rows=(replace(row, num_tokens=num_tokens, token_ids=(1,) * num_tokens),))
