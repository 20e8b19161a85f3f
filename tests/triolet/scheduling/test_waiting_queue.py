from __future__ import annotations

import random

import pytest
from tests.triolet.scheduling.fake_runner import make_sequence

from triolet.args import SchedulingPolicy
from triolet.scheduling.sequence import Sequence
from triolet.scheduling.waiting_queue import MAX_PASSED_OVER, MOST_URGENT, WaitingQueue


def queue_of(policy: SchedulingPolicy, *sequences: Sequence) -> WaitingQueue:
    queue = WaitingQueue(policy)
    for sequence in sequences:
        queue.add(sequence)
    return queue


def take(queue: WaitingQueue) -> Sequence:
    sequence = queue.next()
    assert sequence is not None
    queue.take(sequence, 10)
    return sequence


def ids(queue: WaitingQueue) -> list[int]:
    return [sequence.request.request_id for sequence in queue]


def test_fcfs_knows_no_priorities() -> None:
    queue = queue_of("fcfs", make_sequence(0, priority=5), make_sequence(1, priority=-5))
    assert ids(queue) == [0, 1]
    assert take(queue).priority == 0


def test_the_lower_priority_goes_first_then_whoever_came_first() -> None:
    queue = queue_of(
        "priority",
        *(make_sequence(number, priority=priority) for number, priority in enumerate([3, -1, 0, -1])),
    )
    assert ids(queue) == [1, 3, 2, 0]
    assert [take(queue).request.request_id for _ in range(4)] == [1, 3, 2, 0]
    assert queue.next() is None


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_callers_share_fairly_within_a_priority(policy: SchedulingPolicy) -> None:
    queue = queue_of(policy, *(make_sequence(number, key="many") for number in range(5)))
    queue.add(make_sequence(5, key="few"))
    assert [take(queue).request.request_id for _ in range(3)] == [0, 5, 1]
    assert queue.virtual_times() == {"many": 20}


def test_the_thrown_out_go_first_in_order_of_arrival() -> None:
    queue = queue_of("priority", *(make_sequence(number) for number in range(4)))
    taken = [take(queue) for _ in range(3)]
    queue.put_back(taken[2])
    queue.put_back(taken[0])
    queue.add(make_sequence(9, priority=-1))
    assert ids(queue) == [9, 0, 2, 3]


def test_the_thrown_out_are_not_charged_again_for_their_prompts() -> None:
    queue = queue_of("fcfs", make_sequence(0, key="a"), make_sequence(1, key="a"))
    first = take(queue)
    queue.put_back(first)
    assert take(queue) is first
    assert queue.virtual_times() == {"a": 10}
    queue.charge(first, 3)
    assert queue.virtual_times() == {"a": 13}


def test_those_held_back_are_overtaken() -> None:
    queue = queue_of("fcfs", *(make_sequence(number) for number in range(3)))
    sequence = queue.next({0, 1})
    assert sequence is not None
    assert sequence.request.request_id == 2
    assert queue.next({0, 1, 2}) is None


def test_any_that_waits_can_be_removed_and_none_other() -> None:
    queue = queue_of("priority", *(make_sequence(number, priority=number) for number in range(3)))
    taken = take(queue)
    assert queue.remove(0) is None
    queue.put_back(taken)
    assert 0 in queue
    assert queue.remove(0) is taken
    assert queue.remove(2) is not None
    assert ids(queue) == [1]
    assert queue.remove(1) is not None
    assert len(queue) == 0
    assert queue._levels == {}


def test_the_passed_over_get_a_turn_and_then_count_as_most_urgent() -> None:
    queue = queue_of("priority", make_sequence(0, priority=7), make_sequence(1, priority=7))
    served = []
    for number in range(3 * MAX_PASSED_OVER):
        queue.add(make_sequence(100 + number, priority=-3))
        sequence = take(queue)
        served.append(sequence)
        if sequence.request.request_id >= 2:
            queue.end(sequence)
    turns = [index for index, sequence in enumerate(served) if sequence.request.request_id < 2]
    assert turns == [MAX_PASSED_OVER, 2 * MAX_PASSED_OVER + 1]
    assert [served[index].priority for index in turns] == [MOST_URGENT, MOST_URGENT]
    promoted = served[turns[0]]
    queue.put_back(promoted)
    queue.add(make_sequence(999, priority=-9))
    assert take(queue) is promoted
    queue.end(promoted)


def test_the_most_urgent_is_found_whoever_has_the_turn() -> None:
    queue = queue_of("priority", make_sequence(0, priority=7))
    for number in range(MAX_PASSED_OVER):
        queue.add(make_sequence(100 + number, priority=-3))
        queue.end(take(queue))
    queue.add(make_sequence(1, priority=-3))
    urgent, head = queue.most_urgent(), queue.next()
    assert urgent is not None
    assert head is not None
    assert (urgent.request.request_id, head.request.request_id) == (1, 0)
    assert queue.most_urgent(returned_only=True) is None


def test_a_turn_that_overtakes_nobody_changes_nothing() -> None:
    queue = queue_of("priority", make_sequence(0, priority=7))
    for number in range(MAX_PASSED_OVER):
        queue.add(make_sequence(100 + number, priority=-3))
        queue.end(take(queue))
    assert take(queue).priority == 7


def test_nobody_waits_for_ever() -> None:
    """Overload at every priority: each that waits is taken after a bounded number of others."""
    generator = random.Random(5)
    queue = WaitingQueue("priority")
    added_at: dict[int, int] = {}
    longest = 0
    for number in range(4000):
        for copy in range(2 if len(queue) < 60 else 1):
            request_id = 2 * number + copy
            priority = min(generator.randrange(4), generator.randrange(4))
            queue.add(make_sequence(request_id, priority=priority, key=generator.choice("aab")))
            added_at[request_id] = number
        sequence = take(queue)
        longest = max(longest, number - added_at.pop(sequence.request.request_id))
        queue.end(sequence)
    assert longest < 60 * (MAX_PASSED_OVER + 4)
    assert min(added_at.values()) > 4000 - 60 * (MAX_PASSED_OVER + 4)


@pytest.mark.parametrize("seed", range(20))
def test_the_order_is_that_of_sorting_anew(seed: int) -> None:
    generator = random.Random(seed)
    queue = WaitingQueue("priority")
    waiting: list[Sequence] = []
    taken: list[Sequence] = []
    returned: list[Sequence] = []
    served_at: dict[int, int] = {}
    num_taken = 0

    def rank(sequence: Sequence) -> tuple[int, int, int, bool, int]:
        served = served_at[sequence.priority]
        is_in_time = num_taken - served < MAX_PASSED_OVER
        is_new = sequence not in returned
        return is_in_time, 0 if is_in_time else served, sequence.priority, is_new, sequence.arrival

    def enter(sequence: Sequence) -> None:
        if all(other.priority != sequence.priority for other in waiting):
            served_at[sequence.priority] = num_taken
        waiting.append(sequence)

    for number in range(400):
        act = generator.random()
        if act < 0.5 or not waiting:
            sequence = make_sequence(number, priority=min(generator.randrange(12) for _ in range(2)))
            queue.add(sequence)
            enter(sequence)
        elif act < 0.6:
            sequence = waiting.pop(generator.randrange(len(waiting)))
            assert queue.remove(sequence.request.request_id) is sequence
        elif act < 0.7 and taken:
            sequence = taken.pop(generator.randrange(len(taken)))
            returned.append(sequence)
            queue.put_back(sequence)
            enter(sequence)
        else:
            first = min(waiting, key=rank).priority
            num_taken += 1
            served_at[first] = num_taken
            sequence = take(queue)
            waiting.remove(sequence)
            taken.append(sequence)
        assert list(queue) == sorted(waiting, key=rank)


class CountedPriority(int):
    """A priority that counts how often it is compared."""

    num_compared = 0

    def __lt__(self, other: int) -> bool:
        CountedPriority.num_compared += 1
        return super().__lt__(other)


def test_looking_who_is_next_compares_nothing_however_many_priorities_wait() -> None:
    priorities = [CountedPriority(number) for number in range(1000)]
    queue = queue_of("priority", *(make_sequence(int(one), priority=one) for one in priorities))
    CountedPriority.num_compared = 0
    for _ in range(100):
        queue.next()
        queue.most_urgent()
    assert CountedPriority.num_compared == 0
    queue.end(take(queue))
    assert CountedPriority.num_compared < 100


def test_nothing_is_remembered_when_all_have_ended() -> None:
    queue = queue_of(
        "priority", *(make_sequence(number, priority=number, key=str(number)) for number in range(5))
    )
    taken = [take(queue) for _ in range(5)]
    for sequence in taken:
        queue.charge(sequence, 3)
        queue.end(sequence)
    assert queue._levels == {}
