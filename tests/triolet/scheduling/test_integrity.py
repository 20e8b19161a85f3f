from __future__ import annotations

from collections import Counter

import pytest
from tests.triolet.scheduling.fake_runner import make_request

from triolet.scheduling.integrity import check_sequences
from triolet.scheduling.sequence import Sequence, SequenceStatus


def running() -> Sequence:
    sequence = Sequence(make_request(0, 4, 4), 8)
    sequence.admit(0, 0)
    return sequence


def schedule(sequence: Sequence, num_blocks: int) -> None:
    """Put 4 positions in flight, with so many blocks."""
    sequence.blocks.tables = ([0] * num_blocks,)
    sequence.schedule(4)


def check(sequence: Sequence, num_rows_in_flight: int = 0) -> None:
    in_flight = Counter({sequence: num_rows_in_flight}) if num_rows_in_flight else Counter[Sequence]()
    check_sequences(waiting=[], running=[sequence], leaving=[], in_flight=in_flight, block_size=4)


def test_a_sequence_at_work_is_in_order() -> None:
    sequence = running()
    check(sequence)
    schedule(sequence, 1)
    check(sequence, 1)


def test_a_row_nobody_has_in_flight_is_noticed() -> None:
    sequence = running()
    schedule(sequence, 1)
    with pytest.raises(AssertionError):
        check(sequence)


def test_positions_without_a_block_are_noticed() -> None:
    sequence = running()
    schedule(sequence, 0)
    with pytest.raises(AssertionError):
        check(sequence, 1)


def test_whoever_waits_holds_nothing() -> None:
    sequence = running()
    with pytest.raises(AssertionError):
        check_sequences(waiting=[sequence], running=[], leaving=[], in_flight=Counter(), block_size=4)


def test_whoever_leaves_has_a_row_in_flight() -> None:
    sequence = running()
    sequence.status = SequenceStatus.FINISHED
    with pytest.raises(AssertionError):
        check_sequences(waiting=[], running=[], leaving=[sequence], in_flight=Counter(), block_size=4)
