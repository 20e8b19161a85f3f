"""Slots: histories start, grow and end with the sequences in them, whatever is planned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.triolet.runtime.rows import make_row

from triolet.plan import PlanRow
from triolet.request import LogitsAdjustments
from triolet.runtime.adjuster import Adjuster, draft_of

VOCAB_SIZE = 10
FREQUENCY = LogitsAdjustments(frequency_penalty=1.0)


def penalised_row(*args: Any, adjustments: LogitsAdjustments | None = FREQUENCY, **kwargs: Any) -> PlanRow:
    return make_row(*args, prompt_token_ids=(1, 2), adjustments=adjustments, **kwargs)


def adjusted(adjuster: Adjuster, rows: list[PlanRow]) -> NDArray[np.float32]:
    num_positions = sum(row.num_draft_tokens + 1 for row in rows)
    logits = np.zeros((num_positions, VOCAB_SIZE), dtype=np.float32)
    assert adjuster.adjust(logits, rows) == {}
    return logits


def counts(*token_ids: int) -> list[float]:
    """What a frequency penalty of 1 makes of zeros."""
    return [-float(token_ids.count(token)) for token in range(VOCAB_SIZE)]


def test_history_starts_with_what_was_said_and_goes_on_with_what_is_sampled() -> None:
    adjuster = Adjuster(VOCAB_SIZE)
    adjuster.begin([penalised_row((1, 2), slot=3, history=(1, 2, 7, 7), is_sampled=False)])
    row = penalised_row((), slot=3, start=4)
    assert adjusted(adjuster, [row]).tolist() == [counts(7, 7)]
    adjuster.commit(row, (5, 7))
    assert adjusted(adjuster, [row]).tolist() == [counts(5, 7, 7, 7)]


def test_rows_are_adjusted_by_themselves_and_the_others_left_alone() -> None:
    adjuster = Adjuster(VOCAB_SIZE)
    rows = [
        make_row((4,), slot=0),
        penalised_row((1, 2), slot=2, history=(1, 2, 3)),
        penalised_row((1, 2), slot=1, history=(1, 2, 4, 4)),
    ]
    adjuster.begin(rows)
    assert adjusted(adjuster, rows).tolist() == [counts(), counts(3), counts(4, 4)]


def test_a_new_sequence_in_a_slot_forgets_the_one_before() -> None:
    adjuster = Adjuster(VOCAB_SIZE)
    adjuster.begin([penalised_row((1, 2), history=(1, 2, 3))])
    again = [penalised_row((1, 2), history=(1, 2, 8))]
    adjuster.begin(again)
    assert adjusted(adjuster, again).tolist() == [counts(8)]
    plain = [make_row((1, 2), history=(1, 2))]
    adjuster.begin(plain)
    assert adjusted(adjuster, plain).tolist() == [counts()]
    adjuster.commit(plain[0], (3,))


def test_draft_tokens_count_for_the_positions_after_them_and_for_no_longer() -> None:
    adjuster = Adjuster(VOCAB_SIZE)
    row = penalised_row((2, 6, 6, 3), start=1, num_draft_tokens=3, history=(1, 2))
    assert draft_of(row) == (6, 6, 3)
    adjuster.begin([row])
    expected = [counts(), counts(6), counts(6, 6), counts(6, 6, 3)]
    for _ in range(2):
        assert adjusted(adjuster, [row, make_row()]).tolist() == [*expected, counts()]
    adjuster.commit(row, (6, 5))
    assert adjusted(adjuster, [penalised_row((5,), start=4)]).tolist() == [counts(6, 5)]


def test_what_is_wrong_is_told_by_position_and_takes_nothing_along() -> None:
    def fails_after_a_token(output_token_ids: Any, logits: Any) -> Any:
        return logits if len(output_token_ids) == 0 else None

    adjuster = Adjuster(VOCAB_SIZE)
    failing = LogitsAdjustments(processors=(fails_after_a_token,), frequency_penalty=1.0)
    rows = [
        penalised_row((2, 6, 6), start=1, num_draft_tokens=2, history=(1, 2), adjustments=failing),
        penalised_row((1, 2), slot=1, history=(1, 2, 4)),
        penalised_row((1, 2), slot=2, history=(1, 2, 4)),
    ]
    adjuster.begin(rows)
    logits = np.zeros((5, VOCAB_SIZE), dtype=np.float32)
    logits[3, 5] = np.nan
    errors = adjuster.adjust(logits, rows)
    assert sorted(errors) == [1, 3]
    assert "fails_after_a_token returned None; it must return the logits" in errors[1]
    assert errors[3] == "the model's logits are not finite"
    assert logits[4].tolist() == counts(4)
    adjuster.commit(rows[0], (6,))
    assert adjuster.forbidding_options(rows[0]) == ["logits_processors"]


@pytest.mark.parametrize("bad", [-1, VOCAB_SIZE])
def test_tokens_outside_of_the_vocabulary_are_an_error_of_their_row(bad: int) -> None:
    adjuster = Adjuster(VOCAB_SIZE)
    rows = [penalised_row((1, 2), history=(1, bad)), penalised_row((1, 2), slot=1, history=(1, 2, 4))]
    adjuster.begin(rows)
    logits = np.zeros((2, VOCAB_SIZE), dtype=np.float32)
    assert adjuster.adjust(logits, rows) == {0: f"token id {bad} is not in the vocabulary [0, {VOCAB_SIZE})"}
    assert logits[1].tolist() == counts(4)
    adjuster.commit(rows[0], (0,))
    adjuster.begin([penalised_row((1, 2), history=(1, 2, 3))])
    assert adjusted(adjuster, [penalised_row((), start=3)]).tolist() == [counts(3)]
