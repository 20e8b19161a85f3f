from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from triolet.core.loop import loop_poster
from triolet.errors import EngineGenerateError
from triolet.frontend.collector import RequestOutputCollector
from triolet.frontend.stream import LazyRequestStream, RequestStream
from triolet.request import CompletionOutput, RequestOutput, RequestTimings
from triolet.sampling_params import RequestOutputKind

pytestmark = pytest.mark.anyio


def output(text: str, *, is_finished: bool = False) -> RequestOutput:
    return RequestOutput(
        request_id="1",
        prompt=None,
        prompt_token_ids=(1,),
        outputs=[CompletionOutput(text=text)],
        is_finished=is_finished,
        seed=0,
        timings=RequestTimings(arrived=0.0),
    )


class Request:
    """The other side of a stream: what it is given, and the aborts that it hears."""

    def __init__(self) -> None:
        self.collector = RequestOutputCollector(RequestOutputKind.DELTA)
        self.aborting_threads: list[int] = []

    @property
    def num_aborts(self) -> int:
        return len(self.aborting_threads)

    def abort(self) -> None:
        self.aborting_threads.append(threading.get_ident())

    def stream(self, post: Callable[[Callable[[], Any]], None] | None = None) -> RequestStream:
        return RequestStream("mine", (1, 2), self.collector, self.abort, post or loop_poster())

    def lazy_stream(self) -> LazyRequestStream:
        async def submit() -> RequestStream:
            await anyio.lowlevel.checkpoint()
            return self.stream()

        return LazyRequestStream(submit)


async def settle() -> None:
    """Let posted callbacks run."""
    await anyio.wait_all_tasks_blocked()


class TestEnds:
    async def test_the_last_output_ends_the_iteration_and_nothing_is_aborted(self) -> None:
        request = Request()
        stream = request.stream()
        request.collector.put(output("all", is_finished=True))
        assert [item.outputs[0].text async for item in stream] == ["all"]
        assert [item async for item in stream] == []
        stream.abort()
        del stream
        await settle()
        assert request.num_aborts == 0

    async def test_abort_is_idempotent_and_nothing_more_is_yielded(self) -> None:
        request = Request()
        stream = request.stream()
        request.collector.put(output("some"))
        stream.abort()
        stream.abort()
        assert [item async for item in stream] == []
        await stream.wait_ready()
        del stream
        await settle()
        assert request.num_aborts == 1

    async def test_leaving_its_scope_aborts(self) -> None:
        request = Request()
        async with request.stream() as stream:
            request.collector.put(output("some"))
            await anext(stream)
        assert request.num_aborts == 1

    async def test_so_does_an_exception_in_the_scope(self) -> None:
        request = Request()
        with pytest.raises(KeyError):
            async with request.stream():
                raise KeyError
        assert request.num_aborts == 1

    async def test_cancelling_the_waiting_consumer_aborts(self) -> None:
        request = Request()
        stream = request.stream()
        async with anyio.create_task_group() as task_group:
            task_group.start_soon(anext, stream)
            await settle()
            task_group.cancel_scope.cancel()
        assert request.num_aborts == 1
        assert [item async for item in stream] == []

    async def test_but_not_one_who_waits_only_to_see_whether_there_is_something(self) -> None:
        request = Request()
        stream = request.stream()
        with anyio.move_on_after(0):
            await stream.wait_ready()
        request.collector.put(output("all", is_finished=True))
        await stream.wait_ready()
        assert [item.outputs[0].text async for item in stream] == ["all"]
        assert request.num_aborts == 0

    async def test_an_error_comes_after_what_came_before_and_ends_the_iteration(self) -> None:
        request = Request()
        stream = request.stream()
        request.collector.put(output("some"))
        request.collector.put_error(EngineGenerateError("bad luck"))
        assert (await anext(stream)).outputs[0].text == "some"
        with pytest.raises(EngineGenerateError):
            await anext(stream)
        assert [item async for item in stream] == []


class TestLettingGo:
    async def test_the_last_reference_posts_to_the_loop(self) -> None:
        request = Request()
        stream = request.stream()
        del stream
        assert request.num_aborts == 0, "never from within a finaliser"
        await settle()
        assert request.aborting_threads == [threading.get_ident()]

    async def test_from_another_thread_too(self) -> None:
        request = Request()
        streams = [request.stream()]
        thread = threading.Thread(target=streams.clear)
        thread.start()
        thread.join()
        await settle()
        assert request.aborting_threads == [threading.get_ident()]

    async def test_as_cyclic_garbage_collected_on_another_thread(self) -> None:
        request = Request()
        stream = request.stream()
        stream.itself = stream  # type: ignore[attr-defined]
        del stream
        thread = threading.Thread(target=gc.collect)
        thread.start()
        thread.join()
        await settle()
        assert request.aborting_threads == [threading.get_ident()]

    async def test_after_abort_nothing_is_posted(self) -> None:
        posted: list[Callable[[], Any]] = []
        stream = Request().stream(posted.append)
        stream.abort()
        del stream
        assert posted == []


def test_when_its_loop_is_over_nobody_is_told(anyio_backend: str) -> None:
    request = Request()

    async def make() -> RequestStream:
        return request.stream()

    stream = anyio.run(make, backend=anyio_backend)
    del stream
    assert request.num_aborts == 0


class TestLazyRequestStream:
    async def test_nothing_is_submitted_before_it_is_asked(self) -> None:
        async def submit() -> RequestStream:
            raise AssertionError("not asked for")

        stream = LazyRequestStream(submit)
        await stream.aclose()
        assert [item async for item in stream] == []

    async def test_outputs_come_through_and_end(self) -> None:
        request = Request()
        stream = request.lazy_stream()
        request.collector.put(output("all", is_finished=True))
        assert [item.outputs[0].text async for item in stream] == ["all"]
        assert [item async for item in stream] == []
        await stream.aclose()
        assert request.num_aborts == 0

    async def test_breaking_out_of_the_loop_ends_the_request_at_once(self) -> None:
        request = Request()
        request.collector.put(output("some"))
        async for _ in request.lazy_stream():
            break
        await settle()
        assert request.num_aborts == 1

    async def test_so_does_an_exception_in_the_loop(self) -> None:
        request = Request()
        request.collector.put(output("some"))

        async def consume() -> None:
            async for _ in request.lazy_stream():
                raise KeyError

        with pytest.raises(KeyError):
            await consume()
        await settle()
        assert request.num_aborts == 1

    async def test_aclose_ends_it_and_may_be_called_again(self) -> None:
        request = Request()
        request.collector.put(output("some"))
        async with aclosing(request.lazy_stream()) as stream:
            await anext(stream)
        assert request.num_aborts == 1
        await stream.aclose()
        assert request.num_aborts == 1
        assert [item async for item in stream] == []

    async def test_aclose_by_another_task_during_submission(self) -> None:
        request = Request()
        submitting, go_on = anyio.Event(), anyio.Event()

        async def submit() -> RequestStream:
            submitting.set()
            await go_on.wait()
            return request.stream()

        stream = LazyRequestStream(submit)

        async def consume() -> None:
            assert [item async for item in stream] == []

        async with anyio.create_task_group() as task_group:
            task_group.start_soon(consume)
            await submitting.wait()
            await stream.aclose()
            go_on.set()
        assert request.num_aborts == 1

    async def test_cancelling_the_consumer_ends_the_request(self) -> None:
        request = Request()
        stream = request.lazy_stream()
        async with anyio.create_task_group() as task_group:
            task_group.start_soon(anext, stream)
            await settle()
            task_group.cancel_scope.cancel()
        assert request.num_aborts == 1

    async def test_a_submission_that_fails_may_be_tried_again(self) -> None:
        request = Request()
        failures = [EngineGenerateError("not yet")]

        async def submit() -> RequestStream:
            if failures:
                raise failures.pop()
            return request.stream()

        stream = LazyRequestStream(submit)
        with pytest.raises(EngineGenerateError):
            await anext(stream)
        request.collector.put(output("all", is_finished=True))
        assert [item.outputs[0].text async for item in stream] == ["all"]


async def test_a_second_consumer_is_told_off_and_ends_nothing() -> None:
    request = Request()
    stream = request.stream()
    async with anyio.create_task_group() as task_group:
        task_group.start_soon(anext, stream)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(anyio.BusyResourceError):
            await anext(stream)
        assert request.num_aborts == 0
        request.collector.put(output("end", is_finished=True))
