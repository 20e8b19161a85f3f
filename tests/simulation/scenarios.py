"""What happens in one simulation, drawn from a seed: the cluster, its clients, and what goes wrong when.

This module knows nothing of how any of it is done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.simulation.engine import MAX_MODEL_LEN

from triolet.request import RequestOptions

__all__ = [
    "ENGINE_FAULTS",
    "FRONT_FAULTS",
    "HEAD",
    "HEAD_FAULTS",
    "INTRUDERS",
    "LINK_FAULTS",
    "NODE_FAULTS",
    "RANK_FAULTS",
    "ClientPlan",
    "Fault",
    "Scenario",
    "draw_scenario",
    "features",
]

HEAD = "head"
PROMPT_VOCABULARY = 1000
ENGINE_FAULTS = ("kill", "stop", "crash", "segfault", "hang", "out of memory", "slow")
"""Of one engine process, or of its next step."""
RANK_FAULTS = ("fail to load", "fail to start", "restart", "restart all")
LINK_FAULTS = ("cut", "block", "block one way", "delay")
"""Between the host of the front end and another."""
NODE_FAULTS = ("kill node", "stop node", "end node", "crash node")
"""Of a machine without clients; in a crash all its processes end at once, and its links are silent."""
INTRUDERS = ("wrong secret", "wrong version", "wrong options")
"""A second launcher on such a machine, for the same ranks, that is to be refused."""
HEAD_FAULTS = ("kill head", "crash head")
"""Of the machine with the front ends, or of its launcher; it is started again."""
FRONT_FAULTS = (
    "pause", "sleep", "fail to wake", "overtake a wake-up", "storm", "stall", "stall head", "reset cache",
    "statistics", "kill front end",
)  # fmt: skip
"""In a storm several front ends are asked for pauses, sleeps and their ends at once; a wake-up that fails is
overtaken by something else, and then engines may have to dial anew."""


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """A request and what its client does: leaves after ``leaves_after`` seconds, if it does.

    The last token of a prompt is the client's number, so that no two prompts are alike.
    """

    arrives: float
    prompt: tuple[int, ...]
    max_tokens: int
    options: RequestOptions
    leaves_after: float | None = None

    @property
    def number(self) -> int:
        return self.prompt[-1]


@dataclass(frozen=True, slots=True)
class Fault:
    """``choice`` says of which engine, rank, host or front end; ``seconds`` how long it lasts."""

    at: float
    kind: str
    choice: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """``args`` are options of the engine. ``end``: how the whole comes to its end, after ``duration``."""

    seed: int
    num_api_servers: int
    num_local_ranks: int
    num_nodes: int
    num_node_ranks: int
    args: dict[str, Any]
    delay: tuple[float, float]
    load_seconds: float
    step_seconds: tuple[float, float]
    clients: tuple[ClientPlan, ...]
    faults: tuple[Fault, ...]
    begins_ready: bool
    end: str
    drain_seconds: float

    @property
    def num_ranks(self) -> int:
        return self.num_local_ranks + self.num_nodes * self.num_node_ranks

    @property
    def head_args(self) -> dict[str, Any]:
        """Options of the machine that serves clients."""
        return {
            "separate_engine": True,
            "data_parallel_size": self.num_ranks,
            "data_parallel_size_local": self.num_local_ranks,
            "data_parallel_address": HEAD,
        }

    def node_ranks(self, index: int) -> range:
        start = self.num_local_ranks + index * self.num_node_ranks
        return range(start, start + self.num_node_ranks)

    def node_args(self, index: int) -> dict[str, Any]:
        """Options of a machine that only has engines."""
        ranks = self.node_ranks(index)
        return {
            "data_parallel_size": self.num_ranks,
            "data_parallel_size_local": len(ranks),
            "data_parallel_start_rank": ranks.start,
            "data_parallel_address": HEAD,
        }


def draw_scenario(seed: int) -> Scenario:
    """The one that belongs to a seed."""
    random = Random(seed)
    seconds = random.choice((2.0, 4.0, 8.0))
    num_nodes = random.choice((0, 0, 1, 2))
    step = random.choice((0.02, 0.05, 0.1))
    return Scenario(
        seed=seed,
        num_api_servers=random.choice((1, 1, 1, 2, 3)),
        num_local_ranks=0 if num_nodes and random.random() < 0.2 else random.choice((1, 1, 2, 2, 3)),
        num_nodes=num_nodes,
        num_node_ranks=random.choice((1, 1, 2)),
        args={
            "block_size": 8,
            "max_num_seqs": random.choice((1, 2, 4)),
            "max_num_queued_requests": random.choice((2, 16, 1024)),
            "max_num_queued_tokens": random.choice((200, 2**20)),
            "engine_stall_timeout": random.choice((2.0, 4.0)),
            "engine_restart_budget": random.choice((1, 10, 10, 10)),
            "liveness_timeout": 2.0,
        },
        delay=random.choice(((0.000_1, 0.001), (0.001, 0.02), (0.01, 0.3))),
        load_seconds=random.choice((0.2, 1.0)),
        step_seconds=(step / 2, step),
        clients=_draw_clients(random, seconds),
        faults=_draw_faults(random, seconds, has_nodes=num_nodes > 0),
        begins_ready=random.random() < 0.8,
        end=random.choice(("drain", "drain during a restart", "kill", "second signal")),
        drain_seconds=random.choice((0.0, 0.3, 5.0)),
    )


def _draw_clients(random: Random, seconds: float) -> tuple[ClientPlan, ...]:
    prefixes = [tuple(random.randrange(PROMPT_VOCABULARY) for _ in range(40)) for _ in range(2)]
    burst = random.choice((None, random.uniform(0, seconds)))
    plans = [_draw_client(random, seconds, prefixes, burst, i) for i in range(random.randint(4, 24))]
    return tuple(sorted(plans, key=lambda plan: plan.arrives))


def _draw_client(
    random: Random, seconds: float, prefixes: list[tuple[int, ...]], burst: float | None, number: int
) -> ClientPlan:
    prompt = tuple(random.randrange(PROMPT_VOCABULARY) for _ in range(random.choice((1, 5, 30, 150))))
    if random.random() < 0.3:
        prompt = random.choice(prefixes) + prompt
    max_tokens = random.choice((1, 3, 8, 16))
    if random.random() < 0.02:
        prompt = prompt * (MAX_MODEL_LEN // len(prompt) + 1)
    timeouts: dict[str, Any] = {
        name: random.uniform(0.05, seconds)
        for name in ("queue_timeout", "first_token_timeout", "timeout")
        if random.random() < 0.1
    }
    return ClientPlan(
        arrives=random.uniform(0, seconds) if burst is None else burst,
        prompt=(*prompt, number),
        max_tokens=max_tokens,
        options=RequestOptions(
            data_parallel_rank=random.randrange(5) if random.random() < 0.1 else None, **timeouts
        ),
        leaves_after=random.expovariate(1 / 0.5) if random.random() < 0.2 else None,
    )


def _draw_faults(random: Random, seconds: float, *, has_nodes: bool) -> tuple[Fault, ...]:
    kinds: tuple[str, ...] = ENGINE_FAULTS + RANK_FAULTS + FRONT_FAULTS + HEAD_FAULTS
    if has_nodes:
        kinds += LINK_FAULTS + NODE_FAULTS + INTRUDERS
    chosen = random.sample(kinds, random.randint(1, 4))
    faults = [
        Fault(
            random.uniform(0, seconds),
            random.choice(chosen),
            random.randrange(1000),
            random.choice((0.1, 0.5, 2.5, 6.0, 12.0)),
        )
        for _ in range(random.choice((0, 1, 2, 3, 5)))
    ]
    return tuple(sorted(faults, key=lambda fault: fault.at))


def features(seeds: Iterable[int]) -> Counter[str]:
    """In how many of the scenarios that belong to seeds there is what."""
    counted: Counter[str] = Counter()
    for scenario in map(draw_scenario, seeds):
        counted.update(
            {
                f"API servers: {scenario.num_api_servers}",
                f"machines without clients: {scenario.num_nodes}",
                f"engines: {scenario.num_ranks}",
                f"end: {scenario.end}",
                "begins before it is ready" if not scenario.begins_ready else "begins when it is ready",
                f"faults: {len(scenario.faults)}",
                *(f"fault: {fault.kind}" for fault in scenario.faults),
            }
        )
    return counted
