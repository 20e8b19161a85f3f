"""The routes that control the engine."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
import pytest
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import events_of, request_bytes, serving

from triolet.errors import ConflictError
from triolet.web.control_api import CONTROL_ENDPOINTS

pytestmark = pytest.mark.anyio
ADMIN = {"Authorization": "Bearer root"}
GETS = {"is_paused", "is_sleeping"}


@pytest.mark.parametrize(
    ("call", "made", "answer"),
    [
        ("/pause", ("pause", "abort", True), {"status": "paused"}),
        ("/pause?mode=keep&clear_cache=false", ("pause", "keep", False), {"status": "paused"}),
        ("/resume", ("resume",), {"status": "resumed"}),
        ("/sleep", ("sleep", 1, "abort"), {"status": "sleeping"}),
        ("/sleep?level=2&mode=wait", ("sleep", 2, "wait"), {"status": "sleeping"}),
        ("/wake_up", ("wake_up", None), {"status": "awake"}),
        ("/wake_up?tags=weights&tags=kv_cache", ("wake_up", ["weights", "kv_cache"]), {"status": "asleep"}),
        ("/wake_up?tags=weights,scheduling", ("wake_up", ["weights", "scheduling"]), {"status": "asleep"}),
        ("/reset_prefix_cache", ("reset_prefix_cache", False), {"success": False}),
        ("/reset_prefix_cache?reset_running_requests=TRUE", ("reset_prefix_cache", True), {"success": True}),
    ],
)
async def test_a_route_asks_the_engine(
    anyio_backend_name: str, call: str, made: Any, answer: dict[str, Any]
) -> None:
    engine = FakeEngine()
    async with serving(engine, anyio_backend_name, admin_api_key="root") as running:
        response = await running.client.post(call, headers=ADMIN)
        assert (response.status_code, response.json()) == (200, answer)
        for name in ("is_paused", "is_sleeping"):
            told = await running.client.get(f"/{name}", headers=ADMIN)
            assert told.json() == {name: getattr(engine, name)}
    assert engine.calls == [made]


@pytest.mark.parametrize(
    ("call", "param"),
    [
        ("/pause?mode=stop", "mode"),
        ("/pause?clear_cache=1", "clear_cache"),
        ("/pause?level=1", "level"),
        ("/resume?now=true", "now"),
        ("/sleep?level=3", "level"),
        ("/wake_up?tags=weights,all", "tags"),
        ("/reset_prefix_cache?reset_running_requests=", "reset_running_requests"),
        ("/drain?wait=nan", "wait"),
        ("/drain?wait=-1", "wait"),
        ("/drain?wait=soon", "wait"),
    ],
)
async def test_a_wrong_parameter_is_named(anyio_backend_name: str, call: str, param: str) -> None:
    engine = FakeEngine()
    async with serving(engine, anyio_backend_name, admin_api_key="root") as running:
        response = await running.client.post(call, headers=ADMIN)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)
        assert (await running.client.get("/ready")).status_code == 200
    assert engine.calls == []


@pytest.mark.parametrize("path", ["/pause", "/resume", "/sleep", "/wake_up", "/reset_prefix_cache", "/drain"])
async def test_a_body_is_not_passed_over(anyio_backend_name: str, path: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name, admin_api_key="root") as running:
        response = await running.client.post(path, json={"mode": "keep"}, headers=ADMIN)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "body")
        assert running.engine.calls == []
        assert (await running.client.post(path, json={}, headers=ADMIN)).status_code == 200


async def test_what_the_engine_cannot_do_now_is_a_conflict(anyio_backend_name: str) -> None:
    engine = FakeEngine()
    engine.conflict = ConflictError("the engine is asleep; call wake_up")
    async with serving(engine, anyio_backend_name, admin_api_key="root") as running:
        response = await running.client.post("/resume", headers=ADMIN)
    assert response.status_code == 409
    assert response.json()["error"]["message"] == "the engine is asleep; call wake_up"


async def test_a_stream_that_is_ended_ends_as_others_do(anyio_backend_name: str) -> None:
    engine = FakeEngine(hold_at=2)
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 99}
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    texts: list[str] = []
    async with serving(engine, anyio_backend_name, admin_api_key="root") as running:

        async def ask() -> None:
            answer = await running.client.post("/v1/chat/completions", json=body | streaming)
            texts.append(answer.text)

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await engine.wait_held()
            await running.client.post("/abort_requests", json={"request_ids": "all"}, headers=ADMIN)
    *_, last, usage, done = events_of(texts[0])
    assert last["choices"][0]["finish_reason"] == "abort"
    assert usage["usage"]["completion_tokens"] == 2
    assert done == "[DONE]"


async def test_a_drain_is_not_resumed_from_but_a_pause_that_holds_it_up_is(anyio_backend_name: str) -> None:
    engine = FakeEngine(hold_at=0)
    async with serving(engine, anyio_backend_name, admin_api_key="root") as running:
        await running.client.post("/pause?mode=keep", headers=ADMIN)
        await running.client.post("/drain", headers=ADMIN)
        assert (await running.client.post("/resume", headers=ADMIN)).status_code == 200
        refused = await running.client.post("/resume", headers=ADMIN)
        assert (refused.status_code, refused.json()["error"]["type"]) == (409, "conflict_error")
        assert "restart" in refused.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/pause", "/resume", "/sleep", "/wake_up"])
async def test_a_failure_of_the_engine_is_no_conflict(anyio_backend_name: str, path: str) -> None:
    engine = FakeEngine()
    engine.conflict = RuntimeError("CUDA error: device-side assert")
    async with serving(engine, anyio_backend_name, admin_api_key="root") as running:
        response = await running.client.post(path, headers=ADMIN)
    assert (response.status_code, response.json()["error"]["type"]) == (500, "server_error")
    assert "CUDA" not in response.text


@pytest.mark.parametrize(
    ("options", "key", "status"),
    [
        ({}, None, 403),
        ({}, "root", 403),
        ({"api_key": "k"}, "k", 403),
        ({"admin_api_key": "root"}, None, 401),
        ({"admin_api_key": "root"}, "wrong", 401),
        ({"admin_api_key": "root", "api_key": "k"}, "k", 403),
    ],
)
async def test_only_the_admin_key_opens_them(
    anyio_backend_name: str, options: dict[str, Any], key: str | None, status: int
) -> None:
    engine = FakeEngine()
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with serving(engine, anyio_backend_name, **options) as running:
        for name in sorted(CONTROL_ENDPOINTS):
            response = await running.client.request(
                "GET" if name in GETS else "POST", f"/{name}", headers=headers, json={"request_ids": "all"}
            )
            assert response.status_code == status, name
            assert "admin" in response.text or status == 401
        assert (await running.client.get("/ready", headers=headers)).status_code in (200, 401)
    assert engine.calls == []


async def test_an_admin_key_opens_the_other_routes_too(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name, admin_api_key="root", api_key="k") as running:
        assert (await running.client.get("/metrics", headers=ADMIN)).status_code == 200


@pytest.mark.parametrize("ids", ["all", ["mine"], ["of-the-answer"]])
async def test_requests_are_ended_by_their_names(anyio_backend_name: str, ids: Any) -> None:
    engine = FakeEngine(hold_at=0)
    async with serving(engine, anyio_backend_name, admin_api_key="root") as running:
        async with await running.connect() as stream:
            body = {"prompt": ["a", "b"]}
            await stream.send(request_bytes("/v1/completions", body, headers="X-Request-Id: mine\r\n"))
            await engine.wait_open(2)
            await anyio.wait_all_tasks_blocked()
            if ids == ["of-the-answer"]:
                ids = [engine.submitted[0][2]["request_id"].removesuffix("-0")]
            nothing = await running.client.post("/abort_requests", json={"request_ids": ["x"]}, headers=ADMIN)
            assert nothing.json()["num_aborted"] == 0
            ended = await running.client.post("/abort_requests", json={"request_ids": ids}, headers=ADMIN)
            assert ended.json() == {"status": "aborted", "num_aborted": 2}
            answer = await stream.receive()
            assert b"200" in answer.splitlines()[0]
            choices = msgspec.json.decode(answer.partition(b"\r\n\r\n")[2])["choices"]
            assert [(choice["text"], choice["finish_reason"]) for choice in choices] == [("", "abort")] * 2
        wrong = await running.client.post("/abort_requests", json={"request_ids": "some"}, headers=ADMIN)
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "request_ids")


async def test_a_drain_takes_no_new_work_and_waits_if_asked_to(anyio_backend_name: str) -> None:
    engine = FakeEngine(hold_at=0)
    async with (
        serving(engine, anyio_backend_name, admin_api_key="root") as running,
        anyio.create_task_group() as group,
    ):
        body = {"prompt": "x", "max_tokens": 2}
        group.start_soon(lambda: running.client.post("/v1/completions", json=body))
        await engine.wait_open(1)
        drain = await running.client.post("/drain", headers=ADMIN)
        assert drain.json() == {"status": "draining"}
        assert (await running.client.get("/ready")).status_code == 503
        assert (await running.client.post("/v1/completions", json=body)).status_code == 503
        engine.release()
        drain = await running.client.post("/drain?wait=10", headers=ADMIN)
        assert drain.json() == {"status": "drained"}


async def test_a_rank_is_restarted(anyio_backend_name: str) -> None:
    engine = FakeEngine()
    async with serving(engine, anyio_backend_name, admin_api_key="root") as running:
        for body, seconds in (({"rank": 1}, 30.0), ({"rank": 1, "timeout": 5}, 5.0)):
            answer = await running.client.post("/restart_rank", json=body, headers=ADMIN)
            assert (answer.status_code, answer.json()) == (200, {"status": "restarted", "rank": 1})
            assert engine.calls[-1] == ("restart_rank", 1, seconds)
        wrong = await running.client.post("/restart_rank", json={"rank": -1}, headers=ADMIN)
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "rank")
        engine.conflict = ConflictError("engine 0 is starting")
        busy = await running.client.post("/restart_rank", json={"rank": 0}, headers=ADMIN)
        assert busy.status_code == 409
