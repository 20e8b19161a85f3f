from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.triolet.frontend.parts import input_processor, new_request, token_output

from triolet.core.loop import loop_poster
from triolet.errors import EngineDeadError, EngineGenerateError, OverloadedError, UnreadOutputError
from triolet.frontend.collector import LOGPROB_BYTES
from triolet.frontend.input_processor import InputProcessor
from triolet.frontend.request_table import OUTPUT_CHUNK, RequestTable
from triolet.frontend.stream import RequestStream
from triolet.request import FinishReason, Request, TokenLogprobs, TokenOutput
from triolet.sampling_params import BeamSearchParams, RequestOutputKind
from triolet.statistics import FrontendStatistics

pytestmark = pytest.mark.anyio


MAX_UNREAD_BYTES = 4096


class FakeClient:
    """Notes what it is told; refuses while ``refusal`` is set."""

    def __init__(self) -> None:
        self.added: list[int] = []
        self.aborted: list[int] = []
        self.refusal: Exception | None = None
        self.room = 10_000
        self.outputs: list[TokenOutput] = []

    def add(self, *requests: Request) -> None:
        if self.refusal is not None and len(self.added) + len(requests) > self.room:
            raise self.refusal
        self.added += [request.request_id for request in requests]

    def abort(self, request_id: int, *, is_moved: bool = False) -> None:
        assert not is_moved
        self.aborted.append(request_id)

    async def get_outputs(self) -> list[TokenOutput]:
        await anyio.lowlevel.checkpoint()
        outputs, self.outputs = self.outputs, []
        return outputs


class Front:
    """A table with its client, and requests made for it."""

    def __init__(self, inputs: InputProcessor) -> None:
        self.inputs = inputs
        self.client = FakeClient()
        self.statistics = FrontendStatistics()
        self.table = RequestTable(
            self.client,  # type: ignore[arg-type]
            loop_poster(),
            self.statistics,
            max_unread_bytes=MAX_UNREAD_BYTES,
        )

    def add(self, **fields: Any) -> tuple[RequestStream, int]:
        stream, ids = self.add_several(**fields)
        return stream, ids[0]

    def add_several(self, **fields: Any) -> tuple[RequestStream, list[int]]:
        self.last = new_request(self.inputs, **{"output_kind": "delta", **fields})
        return self.table.add(self.last), [request.request_id for request in self.last.requests]


@pytest.fixture(scope="module")
def inputs(byte_model: Path) -> InputProcessor:
    return input_processor(byte_model)


@pytest.fixture
async def front(inputs: InputProcessor) -> Front:
    return Front(inputs)


async def rest_of(stream: RequestStream) -> list[tuple[str, FinishReason | None]]:
    return [(item.outputs[0].text, item.outputs[0].finish_reason) async for item in stream]


async def test_outputs_reach_their_streams(front: Front) -> None:
    (first, a), (second, b) = front.add(), front.add()
    front.table.process([token_output(a, b"one"), token_output(b, b"two", reason=FinishReason.LENGTH)])
    assert await rest_of(second) == [("two", FinishReason.LENGTH)]
    assert (await anext(first)).outputs[0].text == "one"
    assert front.table.num_requests == 1
    assert front.client.aborted == []


async def test_a_refused_request_leaves_nothing(front: Front) -> None:
    front.client.refusal, front.client.room = OverloadedError("full"), 0
    with pytest.raises(OverloadedError):
        front.add()
    assert front.table.num_requests == 0
    assert front.statistics == FrontendStatistics()
    await front.table.wait_idle()


async def test_a_stop_string_takes_the_request_out_of_the_core(front: Front) -> None:
    stream, a = front.add(stop="n")
    front.table.process([token_output(a, b"one")])
    assert front.client.aborted == [a]
    front.table.process([token_output(a, b"more")])
    assert await rest_of(stream) == [("o", FinishReason.STOP)]


async def test_a_stream_that_is_left_takes_the_request_out_at_once(front: Front) -> None:
    stream, a = front.add()
    stream.abort()
    assert front.client.aborted == [a]
    assert front.table.num_requests == 0
    front.table.abort(front.last)
    assert front.client.aborted == [a]


async def test_abort_all_gives_each_stream_what_there_is(front: Front) -> None:
    (first, a), (second, _) = front.add(stop="one!"), front.add()
    front.table.process([token_output(a, b"one")])
    front.table.abort_all()
    assert await rest_of(first) == [("one", FinishReason.ABORT)]
    assert await rest_of(second) == [("", FinishReason.ABORT)]
    assert len(front.client.aborted) == 2
    assert front.statistics.outcomes == {"abort": 2}


async def test_a_request_that_failed_raises_after_what_it_had(front: Front) -> None:
    stream, a = front.add()
    front.table.process(
        [token_output(a, b"one"), token_output(a, reason=FinishReason.ERROR, error="no luck")]
    )
    assert (await anext(stream)).outputs[0].text == "one"
    with pytest.raises(EngineGenerateError, match="no luck"):
        await anext(stream)
    assert front.statistics.outcomes == {"failed": 1}


async def test_a_death_is_told_to_every_stream_with_its_cause(front: Front) -> None:
    streams = [front.add()[0] for _ in range(3)]
    death = RuntimeError("device lost")
    front.table.fail_all(death)
    for stream in streams:
        with pytest.raises(EngineDeadError, match="device lost") as caught:
            await anext(stream)
        assert caught.value.__cause__ is death
    assert front.client.aborted == [], "the core is dead"
    assert front.table.num_requests == 0


@pytest.mark.parametrize("logprobs", [None, 20])
async def test_one_that_is_read_too_slowly_is_ended_with_its_cause(
    front: Front, logprobs: int | None
) -> None:
    kind = RequestOutputKind.DELTA
    stream, core_id = front.add(logprobs=logprobs, output_kind=kind, max_tokens=400)
    other, other_id = front.add(logprobs=logprobs, output_kind=kind, max_tokens=400)
    num_kept = MAX_UNREAD_BYTES // (1 if logprobs is None else 21 * LOGPROB_BYTES + 1)
    news = [TokenLogprobs(tuple(range(21)), (0.0,) * 21, 1)] if logprobs else None
    text = b"x" * (1 if logprobs else 100)
    num_put = 0
    while front.client.aborted == []:
        for each in (core_id, other_id):
            front.table.process([token_output(each, text, logprobs=news and news * len(text))])
        assert (await anext(other)).outputs[0].text == text.decode()
        num_put += len(text)
    assert front.client.aborted == [core_id]
    assert num_kept < num_put <= num_kept + len(text)
    assert len((await anext(stream)).outputs[0].text) == num_put
    with pytest.raises(UnreadOutputError, match="--max-unread-bytes 4096"):
        await anext(stream)
    assert front.table.num_requests == 1


async def test_one_that_fails_in_the_step_in_which_it_is_too_far_behind_ends_with_its_failure(
    front: Front,
) -> None:
    stream, core_id = front.add(max_tokens=400)
    other, _ = front.add()
    front.table.process([token_output(core_id, b"x" * MAX_UNREAD_BYTES)])
    front.table.process(
        [
            token_output(core_id, b"x" * 100),
            token_output(core_id, b"", reason=FinishReason.ERROR, error="a fault"),
        ]
    )
    assert len((await anext(stream)).outputs[0].text) == MAX_UNREAD_BYTES + 100
    with pytest.raises(EngineGenerateError, match="a fault"):
        await anext(stream)
    assert front.table.num_requests == 1
    other.abort()


async def test_any_number_of_tasks_may_wait_until_it_is_idle(front: Front) -> None:
    added = [front.add() for _ in range(2)]
    num_done = 0

    async def wait() -> None:
        nonlocal num_done
        await front.table.wait_idle()
        num_done += 1

    async with anyio.create_task_group() as task_group:
        for _ in range(3):
            task_group.start_soon(wait)
        for stream, _ in added:
            await anyio.wait_all_tasks_blocked()
            assert num_done == 0
            stream.abort()
    assert num_done == 3


class TestSeveral:
    """n > 1."""

    async def test_leaving_the_stream_ends_all(self, front: Front) -> None:
        stream, ids = front.add_several(n=3)
        front.table.process([token_output(ids[1], reason=FinishReason.LENGTH)])
        stream.abort()
        assert front.client.aborted == [ids[0], ids[2]]
        await front.table.wait_idle()

    async def test_all_are_taken_in_or_none(self, front: Front) -> None:
        front.client.refusal, front.client.room = OverloadedError("full"), 2
        with pytest.raises(OverloadedError):
            front.add_several(n=3)
        assert front.client.added == front.client.aborted == []
        assert front.table.num_requests == 0
        assert front.statistics == FrontendStatistics()

    async def test_a_criterion_that_raises_fails_its_request(self, front: Front) -> None:
        stream, ids = front.add_several(n=2, stop_criteria=(lambda ids, text: 1 / 0,))
        front.table.process([token_output(ids[0], b"x")])
        assert sorted(front.client.aborted) == ids
        assert (await anext(stream)).outputs[0].text == "x"
        with pytest.raises(EngineGenerateError, match="ZeroDivisionError"):
            await anext(stream)


async def test_a_large_batch_never_keeps_the_loop_for_long(front: Front) -> None:
    added = [front.add(max_tokens=5) for _ in range(1000)]
    front.client.outputs = [token_output(core_id, b"x") for _, core_id in added]
    progress = [0]

    async def watch() -> None:
        while progress[-1] < 1000:
            progress.append(front.statistics.num_generated_tokens)
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as task_group:
        task_group.start_soon(watch)
        await front.table.handle_outputs()
    steps = [later - earlier for earlier, later in pairwise(progress)]
    assert max(steps) <= 2 * OUTPUT_CHUNK, "others had their turn in between"
    assert sum(steps) == 1000
    for stream, _ in added:
        assert (await anext(stream)).outputs[0].text == "x"
    front.table.abort_all()


class TestBeams:
    """A search orders what comes next while outputs are handled."""

    ANSWER = TokenLogprobs((97, 97, 98), (-0.5, -0.5, -1.0), 1)

    def begin(self, front: Front) -> tuple[RequestStream, TokenOutput]:
        stream, ids = front.add_several(beams=BeamSearchParams(beam_width=2, max_tokens=3))
        return stream, token_output(ids[0], b"a", logprobs=(self.ANSWER,), reason=FinishReason.LENGTH)

    async def test_the_next_round_is_sent_at_once(self, front: Front) -> None:
        stream, answer = self.begin(front)
        front.table.process([answer])
        assert len(front.client.added) == 3
        stream.abort()
        assert front.client.aborted == front.client.added[1:]
        assert front.table.num_requests == 0

    async def test_a_round_that_is_refused_fails_the_search_as_what_it_is(self, front: Front) -> None:
        stream, answer = self.begin(front)
        front.client.refusal, front.client.room = OverloadedError("full"), 2
        front.table.process([answer])
        with pytest.raises(OverloadedError, match="full"):
            await anext(stream)
        assert len(front.client.added) == 1, "none of the round is left"
        assert front.table.num_requests == 0
        assert front.statistics.outcomes == {"failed": 1}
