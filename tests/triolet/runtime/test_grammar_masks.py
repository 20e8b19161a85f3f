"""Grammars are followed token by token, guesses included, and fail closed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.triolet.runtime.fake_constraints import FakeConstraints
from tests.triolet.runtime.rows import make_row

from triolet.plan import PlanRow
from triolet.request import LogitsAdjustments
from triolet.runtime.grammar_masks import GrammarMasks
from triolet.runtime.ranked_draw import RankedDraw, floats

VOCAB_SIZE = 70


def no_others(positions: Sequence[int]) -> list[list[int]]:
    return [[] for _ in positions]


def bound_row(*args: Any, grammar: str = "3|64 4 5|6", **kwargs: Any) -> PlanRow:
    return make_row(*args, prompt_token_ids=(1, 2), adjustments=LogitsAdjustments(grammar=grammar), **kwargs)


def allowed(masks: GrammarMasks, rows: list[PlanRow]) -> tuple[list[set[int] | None], dict[int, str]]:
    """What may follow at each position, None for anything; and the errors."""
    num_positions = sum(row.num_draft_tokens + 1 for row in rows)
    checked = masks.check(rows, [None] * num_positions, [False] * num_positions, no_others)
    assert not any(checked.has_stood)
    found = dict(zip(checked.positions, map(tokens_of, checked.masks), strict=True))
    return [found.get(position) for position in range(num_positions)], checked.errors


def tokens_of(mask: NDArray[np.int32]) -> set[int]:
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert not bits[VOCAB_SIZE:].any()
    return set(np.flatnonzero(bits).tolist())


def test_masks_follow_what_is_sampled() -> None:
    masks = GrammarMasks(VOCAB_SIZE, FakeConstraints())
    rows = [
        bound_row((1, 2), slot=2, history=(1, 2)),
        make_row(slot=0, history=(1, 2)),
        bound_row((1, 2), slot=1, history=(1, 2, 3, 4)),
    ]
    masks.begin(rows)
    assert allowed(masks, rows) == ([{3, 64}, None, {5, 6}], {})
    for row, token_id in zip(rows, (64, 50, 6), strict=True):
        assert masks.commit(row, (token_id,)) is None
    assert allowed(masks, rows[:2]) == ([{4}, None], {})


def test_a_slot_is_let_go_of_when_another_sequence_comes() -> None:
    constraints = FakeConstraints()
    masks = GrammarMasks(VOCAB_SIZE, constraints)
    masks.begin([bound_row((1, 2), slot=2, history=(1, 2))])
    assert list(constraints.grammars) == [2]
    masks.begin([make_row(slot=2, history=(0,))])
    assert list(constraints.grammars) == []


def test_positions_after_guesses_follow_them_as_far_as_they_are_allowed() -> None:
    constraints = FakeConstraints()
    masks = GrammarMasks(VOCAB_SIZE, constraints)
    right = bound_row((2, 3, 4), start=1, num_draft_tokens=2, history=(1, 2))
    wrong = bound_row((2, 64, 5, 5), slot=1, start=1, num_draft_tokens=3, history=(1, 2))
    masks.begin([right, wrong])
    expected: list[set[int] | None] = [{3, 64}, {4}, {5, 6}, {3, 64}, {4}, None, None]
    for _ in range(2):
        assert allowed(masks, [right, wrong]) == (expected, {})
        assert constraints.accepted == {0: [], 1: []}
    assert masks.commit(right, (3, 4, 5)) is None
    assert constraints.accepted[0] == [3, 4, 5]


def test_what_is_wrong_is_told_by_position() -> None:
    masks = GrammarMasks(VOCAB_SIZE, FakeConstraints())
    rows = [
        bound_row((1, 2), history=(1, 2), grammar="x"),
        bound_row((2, 3, 4), slot=1, start=1, num_draft_tokens=2, history=(1, 2), grammar="3 x 5"),
        bound_row((1, 2), slot=2, history=(1, 2), grammar="nonsense"),
        bound_row((1, 2), slot=3, history=(1, 2)),
    ]
    masks.begin(rows)
    positions, errors = allowed(masks, rows)
    assert errors == {
        0: "structured_outputs: too long",
        2: "structured_outputs: too long",
        4: "structured_outputs: it makes no sense",
    }
    assert positions[5] == {3, 64}
    assert masks.commit(rows[2], (0,)) is None
    assert masks.commit(rows[3], (5,)) == (
        "structured_outputs: the grammar does not allow token 5 where it was sampled"
    )


def test_a_grammar_that_nobody_can_follow_is_an_error() -> None:
    masks = GrammarMasks(VOCAB_SIZE, None)
    row = bound_row((1, 2), history=(1, 2))
    masks.begin([row])
    assert allowed(masks, [row])[1] == {0: "structured_outputs: this engine was built without grammars"}
    masks.begin([make_row(history=(0,))])
    assert allowed(masks, [make_row()]) == ([None], {})


def test_tokens_that_are_allowed_stand_without_a_mask() -> None:
    masks = GrammarMasks(VOCAB_SIZE, FakeConstraints())
    rows = [
        bound_row((1, 2), history=(1, 2)),
        bound_row((1, 2), slot=1, history=(1, 2)),
        make_row(slot=2, history=(1, 2)),
        bound_row((1, 2), slot=3, history=(1, 2)),
        bound_row((2, 3, 4), slot=4, start=1, num_draft_tokens=2, history=(1, 2)),
    ]
    masks.begin(rows)
    checked = masks.check(
        rows, [64, 4, 7, 3, 3, 6, 6], [False, False, True, True, False, False, True], no_others
    )
    found = zip(checked.positions, checked.has_stood, map(tokens_of, checked.masks), strict=True)
    assert sorted(found, key=lambda entry: entry[0]) == [
        (1, False, {3, 64}), (3, True, {3, 64}), (5, False, {4}), (6, True, {5, 6}),
    ]  # fmt: skip
    assert checked.errors == {}


def test_tokens_that_are_refused_give_way_to_the_first_other_one_that_is_allowed() -> None:
    masks = GrammarMasks(VOCAB_SIZE, FakeConstraints())
    rows = [
        bound_row((1, 2), history=(1, 2)),
        bound_row((1, 2), slot=1, history=(1, 2)),
        bound_row((1, 2), slot=2, history=(1, 2)),
        bound_row((2, 3, 4), slot=4, start=1, num_draft_tokens=2, history=(1, 2)),
    ]
    masks.begin(rows)
    asked = list[int]()

    def others(positions: Sequence[int]) -> list[list[int]]:
        asked.extend(positions)
        return [[8, 64, 3] if position == 1 else [9, 5] for position in positions]

    is_shown = [False, True, False, False, False, True]
    checked = masks.check(rows, [3, 4, 4, 3, 8, 8], is_shown, others)
    assert sorted(asked) == [1, 2, 4, 5]
    assert checked.others == {1: 64, 5: 5}
    found = zip(checked.positions, checked.has_stood, map(tokens_of, checked.masks), strict=True)
    assert sorted(found, key=lambda entry: entry[0]) == [
        (1, True, {3, 64}), (2, False, {3, 64}), (4, False, {4}), (5, True, {5, 6}),
    ]  # fmt: skip


class OnlyOneConstraints(FakeConstraints):
    def first_allowed(self, slot: int, token_ids: Sequence[int]) -> int | None:
        return 64


def test_the_only_token_stands_whatever_was_drawn() -> None:
    masks = GrammarMasks(VOCAB_SIZE, OnlyOneConstraints())
    rows = [bound_row((1, 2), slot=slot, history=(1, 2)) for slot in range(2)]
    masks.begin(rows)
    checked = masks.check(rows, [64, 8], [False, False], no_others)
    assert (checked.others, checked.positions) == ({1: 64}, [])


def test_a_draw_from_several_tokens_is_settled_or_needs_a_mask() -> None:
    masks = GrammarMasks(VOCAB_SIZE, FakeConstraints())
    rows = [bound_row((1, 2), slot=slot, history=(1, 2)) for slot in range(2)]
    masks.begin(rows)
    weights = np.array([1.0, 0.5, 0.25], dtype=np.float32)
    sums = np.array([0.0, 1.0, 1.5, 1.75])
    tries = [
        RankedDraw(token_ids, floats(weights), floats(sums), 1.75, 0.5, 1, 1.0, 0.0)
        for token_ids in ([7, 64, 3], [7, 8, 9])
    ]
    checked = masks.check(rows, tries, [False, False], no_others)
    assert (checked.others, checked.positions) == ({0: 64}, [1])


def test_whether_masks_are_quick_is_said_by_the_latest_ones() -> None:
    times = iter([0.0, 10e-6, 1.0, 1.0 + 100e-6, 2.0, 2.0 + 1e-6])
    masks = GrammarMasks(VOCAB_SIZE, FakeConstraints(), clock=lambda: next(times))
    row = bound_row((1, 2), history=(1, 2))
    masks.begin([row])
    answers = [masks.has_quick_mask(row.slot)]
    for _ in range(3):
        allowed(masks, [row])
        answers.append(masks.has_quick_mask(row.slot))
    assert answers == [False, True, False, True]
    masks.begin([row])
    assert not masks.has_quick_mask(row.slot)
