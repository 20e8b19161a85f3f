"""A cluster, its clients and what befalls it: one simulation from its start to an end that leaves nothing.

The cluster is made of production classes (see :mod:`tests.simulation.roles`). What must hold is checked all
the while (:mod:`tests.simulation.invariants`).
"""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import anyio
from anyio.abc import TaskGroup
from tests.simulation.desk import Desk
from tests.simulation.engine import FakeEngine
from tests.simulation.network import Network
from tests.simulation.processes import Machines, Role, VirtualProcess, VirtualStarter
from tests.simulation.scenarios import HEAD, ClientPlan, Scenario
from tests.simulation.tickets import Ticket, WrongError

from triolet.cluster.control_owner import ControlOwner
from triolet.cluster.processes import ProcessSpec
from triolet.request import Request

__all__ = ["ENGINE", "INTRUDER", "SECRET", "Count", "Event", "World", "rank_of"]

SECRET = b"known to all of the launch"
Event = tuple[float, str, tuple[Any, ...]]
"""When, what, and more about it."""
ENGINE = "engine "
INTRUDER = "intruder "
NODE_RESTART_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Count:
    """An engine process has counted a request as one that ended there, after so many tokens."""

    rank: int
    pid: int
    num_tokens: int


def rank_of(name: str) -> int:
    """The rank whose engine process is called so."""
    return int(name.removeprefix(ENGINE))


class World:
    """All there is in one simulation. ``trace`` is what has happened in it, ``desks`` the front ends."""

    def __init__(self, scenario: Scenario, tasks: TaskGroup) -> None:
        self.scenario = scenario
        self.random = Random(scenario.seed ^ 0x51_0B_AD)
        self.events: list[Event] = []
        self.network = Network(self.random, scenario.delay, self.trace)
        self.machines = Machines(tasks, self.network, self.random, self.trace)
        self.desks: list[Desk] = []
        self.owner: ControlOwner | None = None
        """Of whether engines are paused or asleep."""
        self.engines: dict[int, FakeEngine] = {}
        """By the numbers of their processes."""
        self.tickets: dict[int, Ticket] = {}
        """By the number of their clients, which their prompts end with."""
        self.counts: defaultdict[int, list[Count]] = defaultdict(list)
        """By the number of the client."""
        self.problems: list[str] = []
        self.failing_loads: defaultdict[int, list[Exception]] = defaultdict(list)
        self.failing_wakes: defaultdict[int, int] = defaultdict(int)
        self.num_failing_starts = 0
        self.num_deaths: defaultdict[int, int] = defaultdict(int)
        """Of the engine processes of each rank, whatever they died of, starts that failed included."""
        self.is_ending = self.is_front_end_lost = self.is_head_restarting = False
        self.num_heads = 0
        self.loaded_ranks: set[int] = set()
        self.next_steps: dict[int, str] = {}
        """What will happen in the next step of a process."""
        self.slow_until: dict[int, float] = {}
        self.disturbed_until = 0.0
        """Until when news may take longer than the network does."""
        self.aborting = False
        self.head: VirtualProcess
        self.head_role: Role
        self._tasks = tasks
        self._next_request_id = 0

    # ------------------------------------------------------------------ what happens

    def trace(self, kind: str, *details: Any) -> None:
        self.events.append((anyio.current_time(), kind, details))

    def start_soon(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._tasks.start_soon(function, *arguments)

    def disturb(self, seconds: float) -> None:
        """For so long, and a while longer, news may not get through."""
        patience = 2 * self.scenario.args["liveness_timeout"] + 2.0
        self.disturbed_until = max(self.disturbed_until, anyio.current_time() + seconds + patience)

    def processes(self, prefix: str) -> list[VirtualProcess]:
        """Those alive whose names begin so, oldest first."""
        return [one for one in self.machines.processes.values() if one.name.startswith(prefix)]

    def note_problem(self, problem: str) -> None:
        if problem not in self.problems:
            self.trace("problem", problem)
            self.problems.append(problem)

    # ------------------------------------------------------------------ processes

    def starter(self, process: VirtualProcess, roles: dict[str, Role]) -> VirtualStarter:
        """How a launcher starts processes, which fails now and then where an engine is to be one."""
        return VirtualStarter(process, roles, self._fails_to_start)

    def _fails_to_start(self, spec: ProcessSpec) -> bool:
        if not spec.name.startswith(ENGINE):
            return False
        fails = self.num_failing_starts > 0
        self.num_failing_starts -= fails
        self.num_deaths[rank_of(spec.name)] += fails
        return fails

    def start_head(self) -> None:
        """Start the machine that serves clients. Of what was there before, nobody knows any more."""
        self.problems += [problem for desk in self.desks for problem in desk.problems]
        self.desks.clear()
        self.num_deaths.clear()
        self.loaded_ranks.clear()
        self.owner = None
        self.is_head_restarting = self.is_front_end_lost = False
        self.num_heads += 1
        self.head = self.machines.start(HEAD, HEAD, self.head_role)

    @property
    def is_head_over(self) -> bool:
        """It has ended, and is not started again."""
        return self.head.status is not None and not self.is_head_restarting

    def next_generation(self) -> int:
        """Seconds since 1970, as launchers count their processes from."""
        return int(anyio.current_time())

    async def keep(self, name: str, host: str, role: Role) -> None:
        """Start a process again whenever it has ended, as an init system does, until the cluster ends."""
        while not self.is_ending:
            await self.machines.start(name, host, role).wait()
            await anyio.sleep(NODE_RESTART_SECONDS)

    # ------------------------------------------------------------------ clients

    async def client(self, plan: ClientPlan) -> None:
        """Ask, and take what comes, or leave."""
        await anyio.sleep(plan.arrives)
        desks = [desk for desk in self.desks if not desk.is_closed]
        if not desks:
            self.trace("nobody there", plan.number)
            return
        await self.ask(plan, desks[plan.number % len(desks)])

    async def ask(self, plan: ClientPlan, desk: Desk) -> None:
        number = plan.number
        self._next_request_id += 1
        request = Request(
            request_id=self._next_request_id,
            prompt_token_ids=plan.prompt,
            max_tokens=plan.max_tokens,
            seed=number,
            options=plan.options,
        )
        ticket = self.tickets[number] = Ticket(request, f"client {number}", self.trace)
        ticket.may_be_aborted = self.aborting
        self.trace("asked", number, desk.name, len(plan.prompt), plan.max_tokens)
        desk.ask(ticket)
        with anyio.move_on_after(plan.leaves_after):
            await ticket.over.wait()
        if ticket.outcome is None:
            desk.leave(ticket)

    def allow_aborts(self) -> None:
        """From here on requests may be ended by what was asked of the engine."""
        self.aborting = True
        for ticket in self.tickets.values():
            ticket.may_be_aborted = True

    @property
    def open_tickets(self) -> list[Ticket]:
        return [ticket for ticket in self.tickets.values() if ticket.outcome is None]

    # ------------------------------------------------------------------ engines

    def check_work(self, process: VirtualProcess, requests: list[Request]) -> None:
        """No engine computes for a client who has left, but in the step under way when it hears of that."""
        now = anyio.current_time()
        patience = 0.05 + 4 * max(self.scenario.delay)
        for request in requests:
            ticket = self.tickets[request.prompt_token_ids[-1]]
            ended_at = ticket.ended_at
            if ended_at is not None and now > max(ended_at + patience, self.disturbed_until):
                self.note_problem(f"{process!r} computes for {ticket.name}: {ticket.outcome} at {ended_at}")

    def note_end(self, process: VirtualProcess) -> None:
        """A process has ended."""
        for desk in self.desks:
            if desk.name == process.name:
                desk.close(f"{process.name} has ended")
        if process.name.startswith(INTRUDER) and process.status not in (1, 2, -signal.SIGKILL):
            self.note_problem(f"{process!r} was taken in and ended with {process.status}")
        if process.name.startswith(ENGINE):
            self.num_deaths[rank_of(process.name)] += process.status != 0

    # ------------------------------------------------------------------ ends

    def end_all(self) -> None:
        """Whatever happens, nothing stays."""
        for process in list(self.machines.processes.values()):
            process.send_signal(signal.SIGKILL)

    def raise_problems(self) -> None:
        """Raises WrongError for what was not right."""
        problems = [*self.problems, *(problem for desk in self.desks for problem in desk.problems)]
        problems += self.machines.crashes
        if problems:
            raise WrongError("\n".join(problems))
