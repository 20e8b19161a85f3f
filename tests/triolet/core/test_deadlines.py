from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from triolet.core.deadlines import SPARE_ENTRIES, Deadlines, RequestPhase
from triolet.request import RequestOptions

seconds = st.one_of(st.none(), st.sampled_from([0.5, 1.0, 2.0, 3.0, 5.0]))


def test_each_deadline_counts_until_it_is_met() -> None:
    deadlines = Deadlines()
    deadlines.add(1, RequestOptions(queue_timeout=1, first_token_timeout=2, timeout=3), now=10)
    assert deadlines.next_due() == 11
    deadlines.reach(1, RequestPhase.STARTED)
    assert deadlines.next_due() == 12
    deadlines.reach(1, RequestPhase.GENERATING)
    assert deadlines.next_due() == 13
    deadlines.reach(1, RequestPhase.STARTED)
    assert list(deadlines.take_late(12.9)) == []
    assert list(deadlines.take_late(13)) == [1]
    assert list(deadlines.take_late(99)) == []
    assert (len(deadlines), deadlines.next_due()) == (0, None)


def test_a_request_without_deadlines_leaves_no_trace() -> None:
    deadlines = Deadlines()
    deadlines.add(1, RequestOptions(), now=0)
    deadlines.reach(1, RequestPhase.STARTED)
    deadlines.discard(1)
    assert (len(deadlines), deadlines.next_due()) == (0, None)


def test_what_has_ended_does_not_pile_up() -> None:
    deadlines = Deadlines()
    for number in range(10_000):
        deadlines.add(number, RequestOptions(queue_timeout=80_000, timeout=80_000), now=number)
        deadlines.discard(number)
        assert len(deadlines._heap) <= SPARE_ENTRIES + 2


@given(st.lists(st.tuples(seconds, seconds, seconds), max_size=8), st.floats(0, 6))
def test_those_late_are_those_whose_first_deadline_has_passed(
    timeouts: list[tuple[float | None, float | None, float | None]], now: float
) -> None:
    deadlines = Deadlines()
    for number, (queue, first_token, total) in enumerate(timeouts):
        options = RequestOptions(queue_timeout=queue, first_token_timeout=first_token, timeout=total)
        deadlines.add(number, options, now=0)
    late = list(deadlines.take_late(now))
    given_seconds = [[one for one in entry if one is not None] for entry in timeouts]
    assert sorted(late) == [i for i, entry in enumerate(given_seconds) if entry and min(entry) <= now]


class DeadlinesMachine(RuleBasedStateMachine):
    """Against a plain list that is searched from end to end."""

    def __init__(self) -> None:
        super().__init__()
        self.deadlines = Deadlines()
        self.now = 0.0
        self.number = 0
        self.model: dict[int, dict[RequestPhase, float]] = {}
        self.phases: dict[int, RequestPhase] = {}

    @rule(queue=seconds, first_token=seconds, total=seconds)
    def add(self, queue: float | None, first_token: float | None, total: float | None) -> None:
        self.number += 1
        options = RequestOptions(queue_timeout=queue, first_token_timeout=first_token, timeout=total)
        self.deadlines.add(self.number, options, self.now)
        timeouts = zip(RequestPhase, (queue, first_token, total), strict=True)
        self.model[self.number] = {phase: self.now + one for phase, one in timeouts if one is not None}
        self.phases[self.number] = RequestPhase.QUEUED

    @rule(pick=st.integers(0, 100), phase=st.sampled_from(RequestPhase))
    def reach(self, pick: int, phase: RequestPhase) -> None:
        self.deadlines.reach(pick, phase)
        if pick in self.phases:
            self.phases[pick] = max(phase, self.phases[pick])

    @rule(pick=st.integers(0, 100))
    def discard(self, pick: int) -> None:
        self.deadlines.discard(pick)
        self.model.pop(pick, None)
        self.phases.pop(pick, None)

    @rule(step=st.sampled_from([0.0, 0.4, 1.0, 2.5]))
    def wait(self, step: float) -> None:
        self.now += step
        late = {number for number in self.model if min(self._dues(number), default=99e9) <= self.now}
        assert set(self.deadlines.take_late(self.now)) == late
        for number in late:
            self.discard(number)

    def _dues(self, number: int) -> list[float]:
        return [due for phase, due in self.model[number].items() if self.phases[number] <= phase]

    @invariant()
    def next_is_the_earliest(self) -> None:
        dues = [due for number in self.model for due in self._dues(number)]
        assert self.deadlines.next_due() == min(dues, default=None)


TestDeadlines = DeadlinesMachine.TestCase
