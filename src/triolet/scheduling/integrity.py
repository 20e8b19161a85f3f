"""What must hold of a scheduler's sequences between any two calls.

This module changes nothing and knows nothing of blocks but their number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from triolet.scheduling.sequence import Sequence, SequenceStatus

__all__ = ["check_sequences"]


def check_sequences(
    *,
    waiting: Iterable[Sequence],
    running: Iterable[Sequence],
    leaving: Iterable[Sequence],
    in_flight: Counter[Sequence],
    block_size: int,
) -> None:
    """Assert that each sequence is in the state of the place it is in.

    ``in_flight``: how many rows of each sequence are in plans that are not committed yet.
    """
    running, leaving = list(running), list(leaving)
    for sequence in waiting:
        assert sequence.status is SequenceStatus.WAITING
        assert sequence.slot is None
        assert not sequence.blocks.tables
        assert sequence.num_scheduled_tokens == 0
    for sequence in leaving:
        assert sequence.status in (SequenceStatus.PREEMPTED, SequenceStatus.FINISHED)
        assert in_flight[sequence] > 0
    for sequence in running:
        assert sequence.status is SequenceStatus.RUNNING
    holders = [*running, *leaving]
    assert in_flight.keys() <= set(holders)
    for sequence in holders:
        _check_holder(sequence, in_flight[sequence], block_size)


def _check_holder(sequence: Sequence, num_rows_in_flight: int, block_size: int) -> None:
    assert sequence.num_rows_in_flight == num_rows_in_flight
    assert 0 <= sequence.num_samples_in_flight <= num_rows_in_flight
    for table in sequence.blocks.tables:
        assert sequence.num_scheduled_tokens <= len(table) * block_size
    assert sequence.num_computed_tokens <= sequence.num_scheduled_tokens
    length = len(sequence.token_ids) + sequence.num_samples_in_flight
    assert sequence.num_scheduled_tokens - sequence.num_draft_tokens_in_flight <= length
    assert length + sequence.num_draft_tokens_in_flight <= sequence.max_length
