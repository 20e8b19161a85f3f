from __future__ import annotations

import pytest
from tests.triolet.scheduling.fake_runner import make_request

from triolet.plan import LayerGroup, PlanRow
from triolet.scheduling.kv_cache_manager import Admission, KVCacheManager
from triolet.scheduling.sequence import Sequence, SequenceStatus


class Running:
    """A running sequence of a request with blocks of 4 tokens."""

    def __init__(self, num_prompt_tokens: int, max_length: int) -> None:
        self.kv_cache = KVCacheManager(
            [LayerGroup(num_blocks=9)], block_size=4, max_num_batched_tokens=99, enable_prefix_caching=False
        )
        self.sequence = Sequence(make_request(1, num_prompt_tokens, 99), max_length)
        self.admit()

    def admit(self) -> None:
        admission = self.kv_cache.admit(self.sequence.blocks, self.sequence.token_ids, 0)
        assert admission is Admission.ADMITTED
        self.sequence.admit(3, 0)

    def schedule(self, num_tokens: int) -> PlanRow:
        sequence = self.sequence
        assert self.kv_cache.grow(sequence.blocks, sequence.num_scheduled_tokens + num_tokens)
        return sequence.schedule(num_tokens)


def test_a_prefill_is_cut_in_chunks_and_sampled_after_the_last() -> None:
    running = Running(7, 20)
    first = running.schedule(4)
    last = running.schedule(3)
    assert (first.slot, first.start, first.num_tokens, first.is_sampled) == (3, 0, 4, False)
    assert (first.first_new_block, first.new_block_ids) == (0, ((0,),))
    assert (last.start, last.num_tokens, last.is_sampled) == (4, 3, True)
    assert (last.first_new_block, last.new_block_ids) == (1, ((1,),))
    assert first.token_ids + last.token_ids == running.sequence.request.prompt_token_ids


def test_the_first_row_alone_has_the_history() -> None:
    running = Running(7, 20)
    assert running.schedule(4).history == running.sequence.request.prompt_token_ids
    assert running.schedule(3).history is None


def test_positions_found_computed_are_not_scheduled() -> None:
    sequence = Sequence(make_request(1, 11, 99), 20)
    sequence.admit(3, 8)
    assert (sequence.num_pending_tokens, sequence.num_computed_tokens) == (3, 8)
    assert sequence.num_cached_tokens == 8


def test_a_token_in_flight_is_pending_and_its_row_has_no_token_ids() -> None:
    running = Running(4, 20)
    running.schedule(4)
    assert running.sequence.num_pending_tokens == 1
    row = running.schedule(1)
    assert (row.start, row.num_tokens, row.token_ids, row.is_sampled) == (4, 1, (), True)
    assert (row.first_new_block, row.new_block_ids) == (1, ((1,),))


def test_a_token_known_by_then_is_in_its_row() -> None:
    running = Running(3, 20)
    running.sequence.commit(running.schedule(3), 1)
    running.sequence.token_ids.append(9)
    assert running.schedule(1).token_ids == (9,)


def test_nothing_is_pending_when_the_tokens_in_flight_are_the_last() -> None:
    running = Running(3, 5)
    running.schedule(3)
    assert running.sequence.num_pending_tokens == 1
    running.schedule(1)
    assert running.sequence.num_pending_tokens == 0


def test_computed_follows_scheduled() -> None:
    running = Running(6, 20)
    sequence = running.sequence
    rows = [running.schedule(4), running.schedule(2)]
    assert (sequence.num_computed_tokens, sequence.num_scheduled_tokens) == (0, 6)
    sequence.commit(rows[0], 0)
    assert (sequence.num_computed_tokens, sequence.num_rows_in_flight) == (4, 1)
    assert sequence.num_samples_in_flight == 1
    sequence.commit(rows[1], 1)
    assert (sequence.num_computed_tokens, sequence.num_samples_in_flight) == (6, 0)


def test_rows_are_committed_in_order() -> None:
    running = Running(6, 20)
    running.schedule(4)
    last = running.schedule(2)
    with pytest.raises(AssertionError):
        running.sequence.commit(last, 1)


def test_after_a_reset_all_known_tokens_are_pending() -> None:
    running = Running(3, 20)
    sequence = running.sequence
    sequence.commit(running.schedule(3), 1)
    sequence.token_ids.append(9)
    running.kv_cache.release(sequence.blocks)
    sequence.reset(SequenceStatus.WAITING)
    assert sequence.num_pending_tokens == 4
    assert sequence.slot is None
    running.admit()
    row = running.schedule(4)
    assert row.token_ids == row.history == (*sequence.request.prompt_token_ids, 9)
    assert row.is_sampled
