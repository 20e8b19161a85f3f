from __future__ import annotations

import random

import pytest

from triolet.args import Speculation
from triolet.plan import PlanRow, StepPlan
from triolet.request import Request
from triolet.scheduling.speculation import (
    MAX_ACCEPTANCE,
    MAX_PAUSE,
    Draft,
    SequenceSpeculation,
    Speculator,
)
from triolet.scheduling.step_cost import USUAL_RATIO

REPETITIVE = [1, 2, 3, 4] * 5


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
    assert start("draft", 4).propose(REPETITIVE, 9, 0.2) == Draft(4)


def test_no_guess_is_longer_than_there_is_room() -> None:
    assert start().propose(REPETITIVE, 0, 0.2) == Draft()


def test_guesses_get_longer_as_they_are_right_and_shorter_as_they_are_wrong() -> None:
    speculation = start(max_length=8)
    lengths = [speculation.length_for(0.25)]
    for _ in range(6):
        speculation.record(4, 0)
        lengths.append(speculation.length_for(0.25))
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] < lengths[0]
    for _ in range(10):
        speculation.record(4, 4)
    assert speculation.length_for(0.25) == 8


@pytest.mark.parametrize("acceptance", [0.3, 0.5, 0.8, 0.95, 1.0])
@pytest.mark.parametrize("break_even", [0.1, 0.25, 0.7, 0.9])
def test_the_last_guess_still_pays_and_one_more_would_not(acceptance: float, break_even: float) -> None:
    length = SequenceSpeculation(None, 1000, acceptance).length_for(break_even)
    acceptance = min(acceptance, MAX_ACCEPTANCE)
    assert acceptance**length >= break_even or length == 0
    assert acceptance ** (length + 1) < break_even or length == 1000


def test_what_never_pays_has_no_length() -> None:
    assert SequenceSpeculation(None, 4, 1.0).length_for(1.2) == 0


def test_a_guess_must_be_surer_in_a_larger_step() -> None:
    speculator = Speculator("ngram", 4)
    shares = [speculator.break_even(num_tokens) for num_tokens in (1, 8, 64, 512)]
    assert shares == sorted(shares)
    assert shares[0] == pytest.approx(1 / (1 + USUAL_RATIO))
    assert shares[-1] > 0.98
    assert Speculator("draft", 4).break_even(1) > shares[0]


def test_what_does_not_pay_is_tried_ever_more_seldom() -> None:
    speculation = start()
    guesses = []
    for step in range(3000):
        draft = speculation.propose(REPETITIVE, 8, 0.25)
        if draft.num_tokens:
            guesses.append(step)
            speculation.record(draft.num_tokens, 0)
    assert len(guesses) < 80
    assert guesses[-1] - guesses[-2] == MAX_PAUSE


def test_what_pays_again_is_taken_up_again() -> None:
    speculation = start()
    while speculation.length_for(0.25):
        speculation.record(4, 0)
    for _ in range(3 * MAX_PAUSE):
        draft = speculation.propose(REPETITIVE, 8, 0.25)
        if draft.num_tokens:
            speculation.record(draft.num_tokens, draft.num_tokens)
    assert speculation.pause == 1
    assert speculation.propose(REPETITIVE, 8, 0.25).num_tokens == 8


def test_after_a_success_it_is_tried_again_at_once() -> None:
    speculation = start()
    while speculation.length_for(0.9):
        speculation.record(4, 0)
    num_steps = 0
    while not speculation.length_for(0.9):
        num_steps += 1
        draft = speculation.propose(REPETITIVE, 8, 0.9)
        if draft.num_tokens:
            speculation.record(draft.num_tokens, draft.num_tokens)
    assert num_steps < MAX_PAUSE + 20


def test_a_new_sequence_starts_from_what_the_others_have_seen() -> None:
    speculator = Speculator("ngram", 4)
    speculation = speculator.start()
    assert speculation is not None
    assert speculation.propose(REPETITIVE, 4, speculator.break_even(1)).num_tokens
    for _ in range(200):
        speculator.record(speculation, 4, 0)
    late = speculator.start()
    assert late is not None
    assert late.propose(REPETITIVE, 4, speculator.break_even(1)) == Draft()
    assert (speculator.num_draft_tokens, speculator.num_accepted_tokens) == (800, 0)


@pytest.mark.parametrize(("chance", "is_on"), [(0.05, False), (0.7, True)])
def test_it_settles_on_what_pays(chance: float, is_on: bool) -> None:
    """Each guess is right with this chance; N = 1, so a quarter of them pays."""
    generator = random.Random(4)
    speculation = start(max_length=4)
    num_guesses = 0
    for _ in range(500):
        draft = speculation.propose(REPETITIVE, 4, 0.25)
        if draft.num_tokens:
            num_guesses += 1
            right = [generator.random() < chance for _ in range(draft.num_tokens)]
            speculation.record(draft.num_tokens, [*right, False].index(False))
    assert num_guesses > 400 if is_on else num_guesses < 50


def test_what_pays_is_learnt_from_the_steps() -> None:
    speculator = Speculator("ngram", 4)
    for number in range(200):
        num_draft_tokens = number % 5
        plan = plan_of(1 + num_draft_tokens, num_draft_tokens)
        speculator.observe(plan, 0.001 * plan.num_tokens + 0.004)
        speculator.observe(plan_of(500, 0), 9.0)
    assert speculator.break_even(1) == pytest.approx(1 / (1 + 4), rel=0.1)


def plan_of(num_tokens: int, num_draft_tokens: int) -> StepPlan:
    row = PlanRow(
        request=Request(request_id=0, prompt_token_ids=(1,), max_tokens=9, seed=0), slot=0, start=5,
        num_tokens=num_tokens, token_ids=(1,) * num_tokens, first_new_block=0, new_block_ids=((),),
        is_sampled=True, num_draft_tokens=num_draft_tokens,
    )  # fmt: skip
    return StepPlan(step_id=0, rows=(row,))
