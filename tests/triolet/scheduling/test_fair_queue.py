from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.triolet.scheduling.fake_runner import make_sequence

from triolet.scheduling.fair_queue import MAX_AWAY, FairQueue
from triolet.scheduling.sequence import Sequence


def order(queue: FairQueue) -> list[int]:
    return [sequence.request.request_id for sequence in queue]


def serve(queue: FairQueue, num_tokens: int = 10) -> int:
    """Take the next one, serve it and end it; its request's id."""
    sequence = next(iter(queue))
    queue.take(sequence)
    queue.charge(sequence, num_tokens)
    queue.end(sequence)
    return sequence.request.request_id


def test_one_caller_is_served_first_come_first_served() -> None:
    queue = FairQueue()
    for request_id in (4, 2, 9):
        queue.add(make_sequence(request_id))
    assert [serve(queue) for _ in range(3)] == [4, 2, 9]
    assert queue.is_idle


def test_a_caller_with_a_thousand_requests_does_not_starve_one_with_two() -> None:
    queue = FairQueue()
    for request_id in range(1000):
        queue.add(make_sequence(request_id, key="many"))
    assert [serve(queue) for _ in range(5)] == [0, 1, 2, 3, 4]
    for request_id in (2001, 2002):
        queue.add(make_sequence(request_id, key="few"))
    served = [serve(queue) for _ in range(6)]
    assert {2001, 2002} < set(served[:4])


def test_who_takes_more_tokens_waits_longer() -> None:
    queue = FairQueue()
    for request_id in range(100):
        queue.add(make_sequence(request_id, key="long" if request_id < 50 else "short"))
    served: list[int] = []
    while len(served) < 24:
        sequence = next(iter(queue))
        served.append(serve(queue, 30 if sequence.request.options.fairness_key == "long" else 10))
    assert sum(request_id < 50 for request_id in served) == 6


def test_who_was_away_has_not_saved_up() -> None:
    queue = FairQueue()
    for request_id in range(100):
        queue.add(make_sequence(request_id, key="busy"))
    for _ in range(50):
        serve(queue)
    for request_id in range(200, 250):
        queue.add(make_sequence(request_id, key="late"))
    served = [serve(queue) for _ in range(20)]
    assert sum(request_id >= 200 for request_id in served) in (10, 11)


def test_leaving_does_not_wipe_out_what_one_has_had() -> None:
    queue = FairQueue()
    queue.add(make_sequence(0, key="other"))
    queue.add(make_sequence(1, key="glutton"))
    assert serve(queue, 10) == 0
    queue.add(make_sequence(2, key="other"))
    assert serve(queue, 1000) == 1
    queue.add(make_sequence(3, key="glutton"))
    queue.add(make_sequence(4, key="other"))
    assert order(queue) == [2, 4, 3]


def test_what_callers_have_had_is_forgotten_when_all_are_gone() -> None:
    queue = FairQueue()
    queue.add(make_sequence(0, key="a"))
    serve(queue, 1000)
    queue.add(make_sequence(1, key="a"))
    queue.add(make_sequence(2, key="b"))
    assert order(queue) == [1, 2]


def test_only_so_many_callers_are_remembered() -> None:
    queue = FairQueue()
    queue.add(make_sequence(0, key="stays"))
    for number in range(MAX_AWAY + 50):
        sequence = make_sequence(number + 1, key=f"caller {number}")
        queue.add(sequence)
        queue.take(sequence)
        queue.charge(sequence, 5)
        queue.end(sequence)
    assert len(queue._away) == MAX_AWAY


def test_a_removed_sequence_is_gone() -> None:
    queue = FairQueue()
    sequences = [make_sequence(request_id, key="ab"[request_id % 2]) for request_id in range(4)]
    for sequence in sequences:
        queue.add(sequence)
    queue.remove(sequences[0])
    assert len(queue) == 3
    assert order(queue) == [1, 3, 2]
    for sequence in sequences[1:]:
        queue.remove(sequence)
    assert queue.is_idle


class Counted(int):
    """A number that counts how often any like it is compared."""

    num_comparisons = 0

    def __lt__(self, other: int) -> bool:
        Counted.num_comparisons += 1
        return int(self) < int(other)

    def __eq__(self, other: object) -> bool:
        Counted.num_comparisons += 1
        return isinstance(other, int) and int(self) == int(other)

    __hash__ = int.__hash__


@pytest.mark.parametrize("num_callers", [10, 1000])
def test_no_look_at_the_queue_takes_longer_for_many_callers(
    num_callers: int, record_property: Callable[[str, object], None]
) -> None:
    queue = FairQueue()
    for number in range(num_callers * 2):
        sequence = make_sequence(number, key=f"caller {number % num_callers}")
        sequence.arrival = Counted(number)
        queue.add(sequence)
    Counted.num_comparisons = 0
    first = next(iter(queue))
    assert (first.request.request_id, Counted.num_comparisons) == (0, 0)
    # A turn finds four places: two to leave, two to take. Each costs two comparisons for each bit.
    most = 4 * 2 * (num_callers.bit_length() + 1)
    for turn in range(num_callers):
        Counted.num_comparisons = 0
        assert serve(queue) == turn
        assert Counted.num_comparisons <= most
    record_property("most comparisons in a turn", most)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), max_running=st.integers(1, 4))
def test_no_caller_that_waits_gets_further_ahead_than_its_running_requests_come_to(
    seed: int, max_running: int
) -> None:
    generator = random.Random(seed)
    queue = FairQueue()
    running: list[Sequence] = []
    max_tokens = 50
    served: dict[int, int] = {}
    for step in range(300):
        match generator.randrange(4):
            case 0:
                queue.add(make_sequence(step, key=generator.choice("aaaabc")))
            case 1 if len(queue) and len(running) < max_running:
                sequence = next(iter(queue))
                queue.take(sequence)
                running.append(sequence)
                served[sequence.request.request_id] = 0
            case 2 if running:
                sequence = generator.choice(running)
                num_tokens = generator.randint(1, 10)
                total = served[sequence.request.request_id] + num_tokens
                if total <= max_tokens:
                    served[sequence.request.request_id] = total
                    queue.charge(sequence, num_tokens)
            case 3 if running and generator.random() < 0.5:
                queue.end(running.pop(generator.randrange(len(running))))
        times = queue.virtual_times().values()
        assert max(times, default=0) - min(times, default=0) <= max_running * max_tokens


@pytest.mark.parametrize("num_callers", [2, 7])
def test_backlogged_callers_get_equal_shares(num_callers: int) -> None:
    queue = FairQueue()
    generator = random.Random(num_callers)
    for request_id in range(700):
        queue.add(make_sequence(request_id, key=str(request_id % num_callers)))
    tokens = [0] * num_callers
    for _ in range(300):
        sequence = next(iter(queue))
        num_tokens = generator.randint(1, 100)
        tokens[int(sequence.request.options.fairness_key)] += num_tokens
        serve(queue, num_tokens)
    assert max(tokens) - min(tokens) <= 100
