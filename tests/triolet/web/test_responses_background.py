"""Responses in the background over a real socket: seen, read again and ended, and their bounds."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.triolet.web.fake_engine import REPLY, FakeEngine
from tests.triolet.web.responses import PATH, events_of_stream, fold
from tests.triolet.web.serving import Running, read_until, request_bytes, serving

from triolet.errors import EngineGenerateError, OverloadedError
from triolet.web.responses_background import BackgroundResponses, LogReader
from triolet.web.responses_directory import MAX_PIECE_BYTES
from triolet.web.responses_log import EventLog, EventLogs

pytestmark = pytest.mark.anyio
BODY = {"input": "hi", "background": True}


def reader_of(log: EventLog, *, ping_interval: float) -> LogReader:
    return LogReader(partial(log.page, max_bytes=MAX_PIECE_BYTES), 0, ping_interval=ping_interval)


async def begun(running: Running, **fields: Any) -> dict[str, Any]:
    """A response that is written in the background."""
    answer = await running.client.post(PATH, json=BODY | fields)
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()
    return response


async def ended(running: Running, response_id: str) -> dict[str, Any]:
    """The response once it is written."""
    with anyio.fail_after(30):
        while True:
            response: dict[str, Any] = (await running.client.get(f"{PATH}/{response_id}")).json()
            if response["status"] not in ("queued", "in_progress"):
                return response
            await anyio.sleep(0.01)


async def test_a_response_is_written_while_nobody_waits(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(hold_at=5), anyio_backend_name) as running:
        first = await begun(running)
        assert (first["status"], first["background"], first["store"]) == ("queued", True, True)
        await running.engine.wait_held()
        seen = (await running.client.get(f"{PATH}/{first['id']}")).json()
        assert (seen["status"], seen["output"][0]["content"][0]["text"]) == ("in_progress", REPLY[:5])
        running.engine.release()
        last = await ended(running, first["id"])
        plain = (await running.client.post(PATH, json={"input": "hi"})).json()
        streamless = await running.client.get(f"{PATH}/{first['id']}?stream=true")
    assert last["status"] == "completed"
    assert last["usage"] == plain["usage"]
    assert last["output"][0]["content"] == plain["output"][0]["content"]
    assert (streamless.status_code, streamless.json()["error"]["param"]) == (400, "stream")
    assert running.engine.num_open == 0


async def test_a_reader_may_leave_and_come_again(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(hold_at=5), anyio_backend_name) as running:
        stream = await running.connect()
        await stream.send(request_bytes(PATH, BODY | {"stream": True}))
        await read_until(stream, b'"delta":"o"')
        await stream.aclose()
        ((_, _, options),) = running.engine.submitted
        path = f"{PATH}/{options['request_id']}?stream=true"
        async with anyio.create_task_group() as tasks:
            texts: list[str] = []

            async def read(query: str) -> None:
                texts.append((await running.client.get(path + query)).text)

            for query in ("", "&starting_after=3"):
                tasks.start_soon(read, query)
            await anyio.sleep(0.05)
            running.engine.release()
        again = events_of_stream((await running.client.get(path)).text)
        nothing = await running.client.get(f"{path}&starting_after=999")
        kept = (await running.client.get(path.partition("?")[0])).json()
    part, whole = sorted(map(events_of_stream, texts), key=len)
    assert whole == again
    assert part == whole[4:]
    assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
    assert whole[-1]["type"] == "response.completed"
    assert fold(whole) == whole[-1]["response"]["output"]
    assert whole[-1]["response"] == kept
    assert nothing.text == ""


async def test_it_is_queued_until_something_is_computed_for_it(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(hold_at=0), anyio_backend_name) as running:
        first = await begun(running)
        path = f"{PATH}/{first['id']}"
        seen = (await running.client.get(path)).json()
        assert (first["status"], seen["status"], seen["output"]) == ("queued", "queued", [])
        refused = await running.client.post(PATH, json={"input": "a", "previous_response_id": first["id"]})
        assert "still being written" in refused.json()["error"]["message"]
        streamed = await running.client.post(f"{path}/cancel")
        assert streamed.json()["status"] == "cancelled"
        assert (await ended(running, first["id"]))["status"] == "cancelled"
        async with running.client.stream("POST", PATH, json=BODY | {"stream": True}) as answer:
            await running.engine.wait_open(1)
            running.engine.release()
            events = events_of_stream((await answer.aread()).decode())
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert [event["response"]["status"] for event in events[:3]] == ["queued", "queued", "in_progress"]
    assert kinds.count("response.in_progress") == 1
    assert all(options["options"].reports_prompt_progress for _, _, options in running.engine.submitted)


async def test_one_that_ends_in_the_queue_was_never_in_progress(anyio_backend_name: str) -> None:
    async with (
        serving(FakeEngine(hold_at=0), anyio_backend_name) as running,
        running.client.stream("POST", PATH, json=BODY | {"stream": True}) as answer,
    ):
        await running.engine.wait_open(1)
        ((_, _, options),) = running.engine.submitted
        assert (await running.client.post(f"{PATH}/{options['request_id']}/cancel")).is_success
        events = events_of_stream((await answer.aread()).decode())
    kinds = [event["type"] for event in events]
    assert "response.in_progress" not in kinds
    assert kinds[-1] == "response.incomplete"
    assert events[-1]["response"]["status"] == "cancelled"


async def test_cancelling_ends_it_with_what_there_is(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(hold_at=5), anyio_backend_name) as running:
        first = await begun(running)
        await running.engine.wait_held()
        cancelled = await running.client.post(f"{PATH}/{first['id']}/cancel")
        assert cancelled.json()["status"] == "cancelled"
        last = await ended(running, first["id"])
        assert last["status"] == "cancelled"
        assert last["output"][0]["content"][0]["text"] == REPLY[:5]
        assert running.engine.num_open == 0


async def test_one_that_is_deleted_is_ended(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(hold_at=5), anyio_backend_name) as running:
        async with running.client.stream("POST", PATH, json=BODY | {"stream": True}) as answer:
            await running.engine.wait_held()
            ((_, _, options),) = running.engine.submitted
            path = f"{PATH}/{options['request_id']}"
            assert (await running.client.delete(path)).status_code == 200
            assert events_of_stream((await answer.aread()).decode())[-1]["code"] == "events_not_kept"
        await running.engine.wait_open(0)
        assert (await running.client.get(path)).status_code == 404


async def test_a_failure_is_kept(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(hold_at=5), anyio_backend_name) as running:
        first = await begun(running)
        await running.engine.wait_held()
        running.engine.fail_all(EngineGenerateError("lost"))
        last = await ended(running, first["id"])
    assert (last["status"], last["error"]["message"]) == ("failed", "lost")


async def test_a_server_that_leaves_ends_it(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(hold_at=5), anyio_backend_name) as running:
        async with running.client.stream("POST", PATH, json=BODY | {"stream": True}) as answer:
            await running.engine.wait_held()
            await begun(running)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(running.server.drain)
                events = events_of_stream((await answer.aread()).decode())
        await running.is_over.wait()
    assert events[-1]["type"] == "response.failed"
    assert "shutting down" in events[-1]["response"]["error"]["message"]
    assert running.engine.num_open == 0


async def test_whoever_polls_hears_of_its_end_before_the_server_has_left(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(hold_at=5), anyio_backend_name) as running:
        first = await begun(running)
        await running.engine.wait_held()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(running.server.drain)
            last = await ended(running, first["id"])
            with anyio.fail_after(2):  # nobody else is waited for
                await running.is_over.wait()
    assert (last["status"], last["error"]["code"]) == ("failed", "server_error")
    assert "shutting down" in last["error"]["message"]


async def test_one_gets_the_time_that_others_get(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(hold_at=5), anyio_backend_name, shutdown_timeout=20.0) as running:
        first = await begun(running)
        await running.engine.wait_held()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(running.server.drain)
            while (await running.client.get("/ready")).is_success:
                pass
            assert (await running.client.get(f"{PATH}/{first['id']}")).json()["status"] == "in_progress"
            running.engine.release()
            last = await ended(running, first["id"])
    assert last["status"] == "completed"


async def test_it_counts_for_its_key_until_it_ends(anyio_backend_name: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alice a1 max_concurrent_requests=1\n")
    keys.chmod(0o600)
    async with serving(
        FakeEngine(hold_at=5), anyio_backend_name, api_key_file=keys, admin_api_key="root"
    ) as running:
        running.client.headers["Authorization"] = "Bearer a1"
        first = await begun(running)
        assert (await running.client.post(PATH, json=BODY)).status_code == 429
        aborted = await running.client.post(
            "/abort_requests", json={"request_ids": [first["id"]]}, headers={"Authorization": "Bearer root"}
        )
        assert aborted.json()["num_aborted"] == 1
        await running.engine.wait_open(0)
        running.engine.release()
        assert (await ended(running, (await begun(running))["id"]))["status"] == "completed"


async def test_no_more_are_written_than_are_kept(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(hold_at=5), anyio_backend_name, response_store_size=2) as running:
        for _ in range(2):
            await begun(running)
        refused = await running.client.post(PATH, json=BODY)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        running.engine.release()
        await running.engine.wait_open(0)
        await begun(running)


@pytest.mark.parametrize(("fields", "options"), [({"store": False}, {}), ({}, {"response_store_size": 0})])
async def test_one_that_nobody_could_see_is_refused(
    anyio_backend_name: str, fields: dict[str, Any], options: dict[str, Any]
) -> None:
    async with serving(FakeEngine(), anyio_backend_name, **options) as running:
        refused = await running.client.post(PATH, json=BODY | fields)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "background")
        assert running.engine.submitted == []


async def test_a_reader_is_pinged_and_told_what_is_lost() -> None:
    logs = EventLogs(1000)
    log = logs.open("a")
    reader = reader_of(log, ping_interval=0.0)
    assert await anext(reader) == b": ping\n\n"
    logs.append("a", b"data: 0\n\n")
    assert await anext(reader) == b"data: 0\n\n"
    logs.append("a", b"x" * 1000)
    (event,) = events_of_stream((await anext(reader)).decode())
    assert (event["type"], event["code"], event["sequence_number"]) == ("error", "events_not_kept", 1)
    with pytest.raises(StopAsyncIteration):
        await anext(reader)


async def test_a_reader_hears_at_once_that_there_is_nothing_yet() -> None:
    """Its answer has begun, though the next event may be long in coming."""
    with anyio.fail_after(30):
        assert await anext(reader_of(EventLog(), ping_interval=60.0)) == b": ping\n\n"


async def test_a_reader_is_given_no_more_than_a_piece_at_a_time() -> None:
    log = EventLog()
    for _ in range(3):
        log.append(b"x" * (MAX_PIECE_BYTES // 2))
    log.end()
    pieces = [piece async for piece in reader_of(log, ping_interval=1.0)]
    assert list(map(len, pieces)) == [MAX_PIECE_BYTES, MAX_PIECE_BYTES // 2]


async def test_a_place_is_taken_before_anything_is_waited_for() -> None:
    background = BackgroundResponses(EventLogs(1000), max_running=1)
    leave = background.enter()
    with pytest.raises(OverloadedError, match="--response-store-size"):
        background.enter()
    leave()
    background.enter()


async def test_a_reader_of_an_empty_log_ends_with_it() -> None:
    log = EventLog()
    log.end()
    with pytest.raises(StopAsyncIteration):
        await anext(reader_of(log, ping_interval=1.0))
