from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.triolet.scheduling.fake_runner import make_config, make_sequence

from triolet.scheduling.kv_cache_manager import Admission
from triolet.scheduling.sequence import Sequence, SequenceStatus
from triolet.scheduling.sequence_table import SequenceTable


def running(table: SequenceTable, request_id: int, priority: int = 0) -> Sequence:
    sequence = make_sequence(request_id, priority=priority)
    table.waiting.add(sequence)
    assert table.admit(sequence) is Admission.ADMITTED
    return sequence


def table_of(**changes: Any) -> SequenceTable:
    return SequenceTable(make_config(**{"enable_prefix_caching": False, **changes}))


def check(table: SequenceTable, in_flight: Counter[Sequence] | None = None) -> None:
    table.check_integrity(in_flight or Counter())


def test_a_running_sequence_has_a_slot_and_room_for_its_tokens() -> None:
    table = table_of()
    sequence = running(table, 3)
    assert sequence.status is SequenceStatus.RUNNING
    assert table.num_free_slots == 3
    assert table.is_holding(3)
    assert 3 in table
    assert table.grow(sequence, 4)
    check(table)


def test_nobody_is_admitted_without_a_block_left_for_each_that_runs() -> None:
    table = table_of(num_blocks=2)
    running(table, 0)
    late = make_sequence(1)
    table.waiting.add(late)
    assert table.admit(late) is Admission.NO_ROOM
    assert 1 in table.waiting
    check(table)


def test_the_least_urgent_and_last_to_arrive_is_the_worst() -> None:
    table = table_of(scheduling_policy="priority")
    sequences = [running(table, number, priority) for number, priority in enumerate([1, 5, 5, 0])]
    assert table.worst_running() is sequences[2]


def test_what_is_thrown_out_waits_again_with_its_tokens() -> None:
    table = table_of()
    sequence = running(table, 0)
    sequence.token_ids.append(9)
    table.preempt(sequence)
    assert table.waiting.next() is sequence
    assert (table.num_preemptions, table.num_free_slots) == (1, 4)
    assert sequence.token_ids[-1] == 9
    check(table)


@pytest.mark.parametrize("is_preempted", [True, False])
def test_what_is_in_flight_is_given_back_later(is_preempted: bool) -> None:
    table = table_of()
    sequence = running(table, 0)
    table.grow(sequence, 4)
    row = sequence.schedule(4)
    (table.preempt if is_preempted else table.end)(sequence)
    assert 0 in table.leaving
    assert table.num_free_slots == 3
    check(table, Counter([sequence]))
    sequence.commit(row, 1)
    table.give_back(sequence)
    assert table.num_free_slots == 4
    assert (0 in table.waiting) == is_preempted
    check(table)


def test_a_request_is_dropped_once_wherever_it_is() -> None:
    table = table_of()
    table.waiting.add(make_sequence(1))
    sequence = running(table, 0)
    assert table.drop(1)
    assert table.drop(0)
    assert not table.drop(0)
    assert not table.drop(1)
    assert sequence.status is SequenceStatus.FINISHED
    assert len(table.waiting) == 0
    check(table)
