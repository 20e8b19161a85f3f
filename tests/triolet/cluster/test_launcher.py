"""Several API servers over shared engines: started, told, asked, drained and lost. All of them are tasks."""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream
from tests.triolet.cluster.clusters import FakeEngines
from tests.triolet.cluster.fake_processes import FakeChild
from tests.triolet.cluster.fake_rank import make_request
from tests.triolet.cluster.nodes import CREDENTIALS, TRANSPORT
from tests.triolet.core.signals import send

from triolet.args import ServeArgs
from triolet.cluster.api_server_client import ApiServerClient
from triolet.cluster.codec import to_plain
from triolet.cluster.joining import Credentials
from triolet.cluster.launcher import FAILURE_SECONDS, Launcher
from triolet.cluster.launcher_link import LauncherLink, NoAnswer
from triolet.cluster.link import Link
from triolet.cluster.messages import Start
from triolet.cluster.parent_link import serve_parent
from triolet.cluster.reception import FrontEndPlace
from triolet.cluster.transport import Address
from triolet.errors import ConflictError, InvalidRequestError, UsageError
from triolet.request import FinishReason
from triolet.statistics import FrontendStatistics, RankState

pytestmark = pytest.mark.anyio


class ApiServer:
    """An API server without HTTP: its client, what it has counted, how it is drained."""

    def __init__(self, launch: Launch, start: Start, link: Link) -> None:
        self.index, self.launcher = start.rank, LauncherLink(link)
        self.phases: list[str] = []
        self.counted = FrontendStatistics()
        self.drained: tuple[float, float] | None = None
        self._launch = launch
        self._drain_began, self._stopped = anyio.Event(), anyio.Event()
        self.client = ApiServerClient(
            ServeArgs(**start.args), FrontEndPlace(Address.parse(start.extra["near"]), None), self.launcher,
            TRANSPORT, Credentials(start.secret, CREDENTIALS.random_bytes), on_phase=self.phases.append,
        )  # fmt: skip

    async def run(self) -> None:
        self.launcher.answer({"statistics": self._statistics})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.launcher.run, self._drain)
            tasks.start_soon(self._serve)
            await self._drain_began.wait()
            if not self._launch.is_drain_held:
                self._stopped.set()
            await self._stopped.wait()
            tasks.cancel_scope.cancel()

    def stop(self) -> None:
        """Have it end, once it drains."""
        self._stopped.set()

    async def _serve(self) -> None:
        if self.index == 1:
            await self._launch.last_goes_on.wait()
        async with anyio.create_task_group() as tasks:
            await tasks.start(self.client.run)
            self.launcher.announce("ready")
            self.launcher.announce(f"told by {self.index}")
            self._launch.note_serving(self)

    async def _statistics(self) -> Any:
        return to_plain(self.counted)

    async def _drain(self, seconds: float, lead_seconds: float) -> None:
        self.drained = seconds, lead_seconds
        self._drain_began.set()

    async def ask(self, request_id: int) -> FinishReason | None:
        """How a request ends that is asked here."""
        self.client.add(make_request(request_id))
        while True:
            for output in await self.client.get_outputs():
                if output.finish_reason is not None:
                    return output.finish_reason


class Launch:
    """A launcher with two API servers and two engines. ``is_last_held``: the last does not come to serve."""

    def __init__(self, *, is_drain_held: bool = False, is_last_held: bool = False, **options: Any) -> None:
        self.is_drain_held = is_drain_held
        self.last_goes_on = anyio.Event()
        self._num_awaited = 1 if is_last_held else 2
        if not is_last_held:
            self.last_goes_on.set()
        self.engines = FakeEngines(others=self._api_server)
        self.servers: dict[int, ApiServer] = {}
        self.lines: list[str] = []
        self.exits: list[int] = []
        self.code: int | None = None
        self._serving = anyio.Event()
        args = ServeArgs(num_threads=1, data_parallel_size=2, api_server_count=2, port=0, **options)
        self.launcher = Launcher(
            args, 0, "an API server", self.engines.starter, TRANSPORT, CREDENTIALS,
            announce=self.lines.append, exit_now=self.exits.append, first_generation=1,
        )  # fmt: skip

    async def _api_server(self, stream: ByteStream) -> int:
        async def serve(link: Link) -> None:
            start = await link.receive()
            assert isinstance(start, Start)
            assert start.extra["listener"] == 0
            await ApiServer(self, start, link).run()

        return await serve_parent(stream, serve)

    def note_serving(self, server: ApiServer) -> None:
        self.servers[server.index] = server
        if len(self.servers) == self._num_awaited:
            self._serving.set()

    async def run(self) -> None:
        with anyio.fail_after(30):
            self.code = await self.launcher.run()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[list[ApiServer]]:
        """Leave once the launcher has ended."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.run)
            with anyio.fail_after(30):
                await self._serving.wait()
            yield [self.servers[index] for index in sorted(self.servers)]
        assert all(child.status is not None for child in self.engines.starter.children)

    def child(self, name: str) -> FakeChild:
        return next(child for child in self.engines.starter.children if child.name == name)


async def test_all_serve_on_the_same_engines_and_end_in_phases(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    launch = Launch(shutdown_timeout=7.0, drain_lead_time=0.25)
    async with launch.running() as servers:
        for server in servers:
            assert server.client.rank_states == (RankState.READY, RankState.READY)
            assert [await server.ask(number) for number in range(4)] == [FinishReason.LENGTH] * 4
            assert server.phases, "they are told what is waited for"
        assert launch.lines == ["ready", "told by 0"], "once, when all are"
        await send(signal.SIGTERM)
    assert launch.code == 0
    assert [server.drained for server in servers] == [(7.0, 0.25)] * 2
    texts = [record.getMessage() for record in caplog.records]
    assert texts.index("draining: the API servers answer what is under way") < texts.index(
        "draining: the engines end"
    )


async def test_what_they_count_is_told_in_full_by_each() -> None:
    launch = Launch()
    async with launch.running() as servers:
        for server, number in zip(servers, (3, 4), strict=True):
            server.counted.count("stop", number)
        for server, others in zip(servers, (4, 3), strict=True):
            await server.client.refresh_statistics()
            assert [peer.outcomes for peer in server.client.peer_statistics] == [{"stop": others}]
        await send(signal.SIGTERM)


async def test_what_one_asks_of_the_others_is_done_there() -> None:
    launch = Launch()
    async with launch.running() as servers:
        done: list[tuple[str, tuple[str, ...]]] = []

        async def abort(names: tuple[str, ...]) -> int:
            done.append(("aborted", names))
            return len(names)

        servers[1].launcher.answer({"abort": abort})
        assert await servers[0].launcher.call_peers("abort", ["a", "b"]) == [2]
        assert done == [("aborted", ("a", "b"))]
        (failure,) = await servers[0].launcher.call_peers("something else")
        assert not failure
        assert failure == NoAnswer("KeyError: 'something else'"), "the others do not know it"
        await send(signal.SIGTERM)


async def test_one_that_hangs_holds_the_others_up_for_no_longer_than_what_was_asked_may_take(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("triolet.cluster.launcher.ANSWER_SECONDS", 0.05)
    launch = Launch()
    async with launch.running() as servers:
        has_answered = anyio.Event()

        async def wait(seconds: float) -> bool:
            await anyio.sleep(seconds)
            has_answered.set()
            return True

        servers[1].launcher.answer({"wait": wait})
        with anyio.fail_after(30):
            (failure,) = await servers[0].launcher.call_peers("wait", 60.0)
            assert failure == NoAnswer("an API server does not answer")
            assert not has_answered.is_set()
            assert await servers[0].launcher.call_peers("wait", 0.1, seconds=5.0) == [True]
        assert "wait: an API server does not answer" in caplog.text
        await send(signal.SIGTERM)


async def test_what_one_asks_of_the_engines_holds_for_all_when_it_is_answered() -> None:
    launch = Launch()
    async with launch.running() as (one, other):
        await one.client.pause("keep")
        assert other.client.is_paused
        await other.client.sleep(1, "keep")
        with pytest.raises(ConflictError, match=r"^the engine sleeps"):
            await one.client.resume()
        with pytest.raises(InvalidRequestError, match=r"^tags: must be one of"):
            await one.client.wake_up(["brain"])  # type: ignore[list-item]
        await one.client.restart_rank(0, 0.0)
        await one.client.wake_up()
        assert [server.client.is_paused for server in (one, other)] == [False, False]
        assert await other.client.reset_prefix_cache(reset_running_requests=True)
        assert await other.ask(1) is FinishReason.LENGTH
        await send(signal.SIGTERM)


async def test_a_pause_that_aborts_ends_the_requests_of_all() -> None:
    launch = Launch()
    async with launch.running() as (one, other):
        other.client.add(make_request(1, max_tokens=10**6))
        await other.client.get_outputs()
        await one.client.pause("abort")
        ends: list[Any] = []
        while not ends:
            ends = [output for output in await other.client.get_outputs() if output.finish_reason]
        assert [(end.request_id, end.finish_reason) for end in ends] == [(1, FinishReason.ABORT)]
        await send(signal.SIGTERM)


async def test_a_rank_is_replaced_on_behalf_of_any(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    launch = Launch()
    async with launch.running() as servers:
        await servers[1].client.restart_rank(0, 1.0)
        assert [server.client.rank_states[0] for server in servers] == [RankState.READY] * 2
        await send(signal.SIGHUP)
        with anyio.fail_after(30):
            while "all engines are restarted" not in caplog.text:  # noqa: ASYNC110 - only the log tells
                await anyio.sleep(0.01)
        ended = [child.name for child in launch.engines.starter.children if child.status == 0]
        assert sorted(ended) == ["engine 0", "engine 0", "engine 1"]
        await send(signal.SIGTERM)


async def test_an_api_server_that_ends_during_a_restart_is_not_waited_for() -> None:
    launch = Launch(is_drain_held=True, shutdown_timeout=15.0)
    async with launch.running() as (one, other):
        asked, restarted = anyio.Event(), anyio.Event()

        async def wait_serving(_: int) -> None:
            asked.set()
            await anyio.sleep_forever()

        async def restart() -> None:
            await one.client.restart_rank(0, 1.0)
            restarted.set()

        other.launcher.answer({"wait_serving": wait_serving})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(restart)
            with anyio.fail_after(10):
                await asked.wait()
                await send(signal.SIGTERM)
                other.stop()
                await restarted.wait()
        one.stop()
    assert launch.code == 0


async def test_an_api_server_that_starts_is_waited_for_during_a_restart() -> None:
    launch = Launch(is_last_held=True)
    async with launch.running() as (one,), anyio.create_task_group() as tasks:
        order: list[str] = []

        async def restart() -> None:
            await one.client.restart_rank(0, 1.0)
            order.append("restarted")

        tasks.start_soon(restart)
        with anyio.fail_after(30):
            while len(launch.engines.starter.children) < 5:  # noqa: ASYNC110 - there is no event to wait for
                await anyio.sleep(0.01)
            await one.client.wait_back(0)
        await anyio.wait_all_tasks_blocked()
        order.append("the last serves")
        launch.last_goes_on.set()
        with anyio.fail_after(30):
            while len(order) < 2:  # noqa: ASYNC110 - there is no event to wait for
                await anyio.sleep(0.01)
        assert order == ["the last serves", "restarted"]
        await send(signal.SIGTERM)


async def test_a_second_signal_ends_at_once() -> None:
    launch = Launch(is_drain_held=True, shutdown_timeout=0.1)
    async with launch.running():
        await send(signal.SIGTERM, signal.SIGINT)
        assert launch.exits == [128 + signal.SIGINT]
        for name in ("API server 0", "API server 1"):
            launch.child(name).kill()
    assert launch.code == 0


async def test_the_death_of_an_api_server_ends_everything(caplog: pytest.LogCaptureFixture) -> None:
    launch = Launch()
    async with launch.running():
        launch.child("API server 1").last_lines = ("before", "Segmentation fault")
        launch.child("API server 1").kill()
    assert launch.code == 1
    said = "the server has stopped: API server 1 ended: killed by SIGKILL; it wrote: Segmentation fault"
    assert caplog.records[-1].getMessage() == said


async def test_the_death_of_an_engine_for_good_is_told_to_callers_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    launch = Launch(engine_restart_budget=0, drain_lead_time=600.0)
    async with launch.running() as servers:
        launch.child("engine 1").kill()
    assert launch.code == 1
    assert [server.drained for server in servers] == [(FAILURE_SECONDS, 0.0)] * 2, "nobody is to be led away"
    assert all(server.client.rank_states[1] is RankState.DEAD for server in servers)
    assert "the server has stopped: engine 1 died, and" in caplog.records[-1].getMessage()


async def test_an_option_that_only_an_engine_finds_wrong_is_a_usage_error() -> None:
    def fail() -> None:
        raise UsageError("too long", param="max_model_len")

    launch = Launch()
    launch.engines.fail = fail
    await launch.run()
    assert launch.code == 2
    assert all(child.status is not None for child in launch.engines.starter.children)
