from __future__ import annotations

import pytest
from tests.triolet.scheduling.fake_runner import make_request

from triolet.scheduling.sequence import Sequence, SequenceStatus


def running(num_prompt_tokens: int, max_length: int) -> Sequence:
    sequence = Sequence(make_request(1, num_prompt_tokens, 99), max_length)
    sequence.slot = 3
    return sequence


def test_a_prefill_is_cut_in_chunks_and_sampled_after_the_last() -> None:
    sequence = running(7, 20)
    first = sequence.schedule(4, [5, 6])
    last = sequence.schedule(3, [])
    assert (first.slot, first.start, first.num_tokens, first.is_sampled) == (3, 0, 4, False)
    assert (first.first_new_block, first.new_block_ids) == (0, ((5, 6),))
    assert (last.start, last.num_tokens, last.is_sampled) == (4, 3, True)
    assert (last.first_new_block, last.new_block_ids) == (2, ((),))
    assert first.token_ids + last.token_ids == sequence.request.prompt_token_ids


def test_a_token_in_flight_is_pending_and_its_row_has_no_token_ids() -> None:
    sequence = running(3, 20)
    sequence.schedule(3, [0])
    assert sequence.num_pending_tokens == 1
    row = sequence.schedule(1, [1])
    assert (row.start, row.num_tokens, row.token_ids, row.is_sampled) == (3, 1, (), True)
    assert (row.first_new_block, row.new_block_ids) == (1, ((1,),))


def test_a_token_known_by_then_is_in_its_row() -> None:
    sequence = running(3, 20)
    sequence.commit(sequence.schedule(3, [0]))
    sequence.token_ids.append(9)
    assert sequence.schedule(1, []).token_ids == (9,)


def test_nothing_is_pending_when_the_tokens_in_flight_are_the_last() -> None:
    sequence = running(3, 5)
    sequence.schedule(3, [0])
    assert sequence.num_pending_tokens == 1
    sequence.schedule(1, [])
    assert sequence.num_pending_tokens == 0


def test_computed_follows_scheduled() -> None:
    sequence = running(6, 20)
    rows = [sequence.schedule(4, [0]), sequence.schedule(2, [])]
    assert (sequence.num_computed_tokens, sequence.num_scheduled_tokens) == (0, 6)
    sequence.commit(rows[0])
    assert (sequence.num_computed_tokens, sequence.num_rows_in_flight) == (4, 1)
    assert sequence.num_samples_in_flight == 1
    sequence.commit(rows[1])
    assert (sequence.num_computed_tokens, sequence.num_samples_in_flight) == (6, 0)


def test_rows_are_committed_in_order() -> None:
    sequence = running(6, 20)
    sequence.schedule(4, [0])
    last = sequence.schedule(2, [])
    with pytest.raises(AssertionError):
        sequence.commit(last)


def test_after_a_reset_all_known_tokens_are_pending() -> None:
    sequence = running(3, 20)
    sequence.commit(sequence.schedule(3, [0]))
    sequence.token_ids.append(9)
    sequence.reset(SequenceStatus.WAITING)
    assert sequence.num_pending_tokens == 4
    assert sequence.slot is None
    assert sequence.block_ids == []
    sequence.slot = 0
    row = sequence.schedule(4, [7])
    assert row.token_ids == (*sequence.request.prompt_token_ids, 9)
    assert row.is_sampled
