"""A dispatcher over ranks that come, die, answer, refuse and stall at random, against what must hold always.

Each rank is modelled as what it would do: it runs what it was sent under its wire ids, in order, and never
what was taken from it. Links are ordered, so what a rank has said stays said, also when it dies right after.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.triolet.cluster.ranks import FakeLink, ask, ready, report, router_args

from triolet.cluster.dispatcher import MAX_LOSSES, Dispatcher
from triolet.cluster.messages import Abort, Add
from triolet.errors import OverloadedError
from triolet.request import FinishReason, TokenOutput
from triolet.statistics import RankState

NUM_RANKS = 3
MAX_NUM_SEQS = 2
ranks = st.integers(0, NUM_RANKS - 1)


class FakeRank:
    """One start of a rank: the requests it has, and what it has said that has not arrived yet."""

    def __init__(self, rank: int, generation: int) -> None:
        self.rank, self.generation = rank, generation
        self.link = FakeLink()
        self.running: dict[int, int] = {}  # wire id → tokens made
        self.originals: dict[int, int] = {}  # wire id → first token of its prompt, which names the request
        self.arriving: deque[TokenOutput] = deque()

    def read(self) -> None:
        for message in self.link.posted:
            match message:
                case Add(request):
                    assert request.request_id not in self.running
                    self.running[request.request_id] = 0
                    self.originals[request.request_id] = request.prompt_token_ids[0] // 1000
                case Abort(request_ids):
                    for request_id in request_ids:
                        self.running.pop(request_id, None)
        self.link.posted.clear()

    def load(self) -> dict[str, Any]:
        self.read()
        num_running = min(len(self.running), MAX_NUM_SEQS)
        return {"num_running": num_running, "num_waiting": len(self.running) - num_running}


class DispatcherMachine(RuleBasedStateMachine):
    """Random events at a dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        args = router_args(max_num_seqs=MAX_NUM_SEQS, max_num_queued_requests=4)
        self.dispatcher = Dispatcher(args, range(NUM_RANKS), has_peers=False)
        self.up: dict[int, FakeRank] = {}
        self.generations: dict[int, int] = defaultdict(int)
        self.now = 0.0
        self.num_added = self.num_deaths = 0
        self.given: dict[int, list[TokenOutput]] = {}
        self.aborted: set[int] = set()
        self.pinned: dict[int, int] = {}
        for rank in range(NUM_RANKS):
            self.start(rank)

    # ---- events

    @rule(rank=ranks)
    def start(self, rank: int) -> None:
        if rank in self.up:
            return
        self.generations[rank] += 1
        self.up[rank] = fake = FakeRank(rank, self.generations[rank])
        self.dispatcher.update([report(rank, generation=fake.generation)], self.now)
        self.dispatcher.attach(fake.link, ready(rank, fake.generation), self.now)

    @rule(
        number=st.integers(1, 3),
        prompt=st.integers(1, 30),
        pin=st.none() | st.none() | ranks,
        timeout=st.none() | st.sampled_from([0.5, 3.0]),
    )
    def add(self, number: int, prompt: int, pin: int | None, timeout: float | None) -> None:
        options = {"data_parallel_rank": pin, "timeout": timeout}
        requests = [ask(self.num_added + index, prompt, **options) for index in range(number)]
        try:
            self.dispatcher.add(requests, self.now)
        except OverloadedError as exc:
            if exc.status == 503:
                assert pin not in self.ready_ranks() if pin is not None else not self.ready_ranks()
            return
        self.num_added += number
        for request in requests:
            self.given[request.request_id] = []
            if pin is not None:
                self.pinned[request.request_id] = pin

    @rule(choice=st.integers(0, 10))
    def abort(self, choice: int) -> None:
        under_way = self.under_way()
        if under_way:
            request_id = under_way[choice % len(under_way)]
            self.dispatcher.abort(request_id, self.now)
            self.aborted.add(request_id)

    @rule(rank=ranks, choice=st.integers(0, 10), num_tokens=st.integers(1, 2), is_last=st.booleans())
    def generate(self, rank: int, choice: int, num_tokens: int, is_last: bool) -> None:
        fake = self.up.get(rank)
        if fake is None:
            return
        fake.read()
        running = list(fake.running)[:MAX_NUM_SEQS]
        if not running:
            return
        wire_id = running[choice % len(running)]
        first = fake.running[wire_id]
        tokens = tuple(1000 * fake.originals[wire_id] + first + index for index in range(num_tokens))
        fake.running[wire_id] += num_tokens
        reason = FinishReason.STOP if is_last else None
        fake.arriving.append(TokenOutput(request_id=wire_id, token_ids=tokens, finish_reason=reason))
        if is_last:
            del fake.running[wire_id]

    @rule(rank=ranks, number=st.integers(1, 4))
    def deliver(self, rank: int, number: int) -> None:
        fake = self.up.get(rank)
        if fake is not None:
            arrived = [fake.arriving.popleft() for _ in range(min(number, len(fake.arriving)))]
            self.dispatcher.receive(self.dispatcher.ranks[rank], fake.link, arrived, self.now)

    @rule(rank=ranks, tells=st.sampled_from(["before", "after", "never"]), loses_words=st.booleans())
    def die(self, rank: int, tells: str, loses_words: bool) -> None:
        fake = self.up.pop(rank, None)
        if fake is None:
            return
        self.num_deaths += 1
        told = report(rank, RankState.DOWN, generation=fake.generation, cause="killed")
        if tells == "before":
            self.dispatcher.update([told], self.now)
        if not loses_words:
            self.dispatcher.receive(self.dispatcher.ranks[rank], fake.link, fake.arriving, self.now)
        self.dispatcher.detach(self.dispatcher.ranks[rank], fake.link, "closed", self.now)
        if tells == "after":
            self.dispatcher.update([told], self.now)

    @rule(rank=ranks, state=st.sampled_from([RankState.READY, RankState.READY, RankState.DRAINING]))
    def tell(self, rank: int, state: RankState) -> None:
        fake = self.up.get(rank)
        if fake is not None:
            told = report(rank, state, generation=fake.generation, **fake.load())
            self.dispatcher.update([told], self.now)

    @rule(seconds=st.sampled_from([0.1, 0.4, 1.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.dispatcher.expire(self.now)
        due = self.dispatcher.next_due()
        assert due is None or due > self.now

    # ---- what must hold

    def outputs_are_right(self) -> None:
        for output in self.dispatcher.take_outputs():
            request_id = output.request_id
            assert request_id not in self.aborted, "nothing is said of what was taken out"
            said = self.given[request_id]
            assert not said or said[-1].finish_reason is None, "each request ends once"
            num_before = sum(len(one.token_ids) for one in said)
            expected = tuple(1000 * request_id + num_before + index for index in range(len(output.token_ids)))
            assert output.token_ids == expected, "in order, from one rank, no token twice and none missing"
            if output.is_engine_dead:
                assert said or self.num_deaths >= MAX_LOSSES, "what has said nothing is replayed"
                assert output.error is not None
                assert output.error.endswith((": killed", ": closed"))
            said.append(output)

    @invariant()
    def nothing_is_lost(self) -> None:
        self.outputs_are_right()
        self.dispatcher.check_integrity()
        assert self.dispatcher.num_requests == len(self.under_way())
        for rank, fake in self.up.items():
            fake.read()
            known = self.dispatcher.ranks[rank].requests
            saying = {output.request_id for output in fake.arriving if output.finish_reason is not None}
            assert known.keys() == fake.running.keys() | (saying & known.keys()), "both sides have the same"
            for routed in known.values():
                assert self.pinned.get(routed.request.request_id, rank) == rank

    @invariant()
    def nothing_waits_while_it_could_be_had(self) -> None:
        for routed in self.dispatcher._held:
            pin = routed.request.options.data_parallel_rank
            assert not self.ready_ranks() if pin is None else pin not in self.ready_ranks()

    def ready_ranks(self) -> list[int]:
        return [rank for rank, link in self.dispatcher.ranks.items() if link.state is RankState.READY]

    def under_way(self) -> list[int]:
        ended = {request_id for request_id, said in self.given.items() if said and said[-1].finish_reason}
        return [request_id for request_id in self.given if request_id not in ended | self.aborted]

    def teardown(self) -> None:
        """Let everything come to its end: then nothing is left."""
        for rank in range(NUM_RANKS):
            self.die(rank, "after", False)
            self.start(rank)
        while self.under_way():
            num_before = len(self.under_way())
            for fake in self.up.values():
                fake.read()
                for wire_id in list(fake.running):
                    self.generate(fake.rank, list(fake.running).index(wire_id), 1, True)
                self.deliver(fake.rank, 100)
            self.wait(1.0)
            self.nothing_is_lost()
            assert len(self.under_way()) < num_before, "there is always progress"
        self.wait(1.0)
        assert self.dispatcher.num_requests == 0
        assert self.dispatcher.next_due() is None
        for link in self.dispatcher.ranks.values():
            assert (link.requests, link.new, link.burden.num_tokens) == ({}, {}, 0)


TestDispatcherMachine = DispatcherMachine.TestCase
TestDispatcherMachine.settings = settings(max_examples=100, stateful_step_count=50)
