"""Who is let in: limits of keys, and request ids that are under way already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import read_until, request_bytes, serving

pytestmark = pytest.mark.anyio
BODY = {"prompt": "hi", "max_tokens": 4}
COMPLETIONS = "/v1/completions"


def bearer(key: str, **headers: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} | headers


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text("alice a1 max_concurrent_requests=1\nbob b1 max_requests_per_minute=2\n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_key_has_so_many_requests_at_once(
    anyio_backend_name: str, key_file: Path, is_streamed: bool
) -> None:
    engine = FakeEngine(hold_at=0)
    async with serving(engine, anyio_backend_name, api_key_file=key_file, ping_interval=0.05) as running:
        body = BODY | {"stream": is_streamed}

        async def ask(statuses: list[int]) -> None:
            response = await running.client.post(COMPLETIONS, json=body, headers=bearer("a1"))
            statuses.append(response.status_code)

        first: list[int] = []
        async with anyio.create_task_group() as group:
            group.start_soon(ask, first)
            await engine.wait_open(1)
            refused = await running.client.post(COMPLETIONS, json=body, headers=bearer("a1"))
            assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
            assert "max_concurrent_requests" in refused.json()["error"]["message"]
            assert (await running.client.get("/ready", headers=bearer("a1"))).status_code == 200
            engine.release()
        for _ in range(5):
            await ask(first)
        assert first == [200] * 6


async def test_a_caller_who_leaves_makes_room(anyio_backend_name: str, key_file: Path) -> None:
    engine = FakeEngine(hold_at=0)
    async with serving(engine, anyio_backend_name, api_key_file=key_file) as running:
        for is_streamed in (True, False):
            async with await running.connect() as stream:
                body = BODY | {"stream": is_streamed}
                await stream.send(request_bytes(COMPLETIONS, body, headers="Authorization: Bearer a1\r\n"))
                await engine.wait_open(1)
            await engine.wait_open(0)
        engine.release()
        with anyio.fail_after(30):
            while running.server.num_open_requests:  # noqa: ASYNC110 - the server only counts
                await anyio.sleep(0.01)
        answer = await running.client.post(COMPLETIONS, json=BODY, headers=bearer("a1"))
        assert answer.status_code == 200


async def test_a_key_has_so_many_requests_in_a_minute(anyio_backend_name: str, key_file: Path) -> None:
    engine = FakeEngine()
    async with serving(engine, anyio_backend_name, api_key_file=key_file) as running:
        answers = [await running.client.post(COMPLETIONS, json=BODY, headers=bearer("b1")) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert 1 <= int(answers[2].headers["Retry-After"]) <= 60
    assert answers[2].json()["error"]["code"] == "rate_limit_exceeded"
    assert [asked["options"].fairness_key for _, _, asked in engine.submitted] == ["bob", "bob"]


async def test_a_request_id_is_used_once_at_a_time(anyio_backend_name: str) -> None:
    engine = FakeEngine(hold_at=0)
    name = "Authorization: Bearer a1\r\nX-Request-Id: mine\r\n"

    async def ask(**headers: str) -> Any:
        return await running.client.post(COMPLETIONS, json=BODY, headers=bearer(**headers))

    async with (
        serving(engine, anyio_backend_name, api_key="a:a1 b:b1") as running,
        await running.connect() as stream,
    ):
        await stream.send(request_bytes(COMPLETIONS, BODY, headers=name))
        await engine.wait_open(1)
        repeated = await ask(key="a1", **{"X-Request-Id": "mine"})
        assert (repeated.status_code, repeated.headers["X-Request-Id"]) == (409, "mine")
        assert repeated.json()["error"]["param"] == "X-Request-Id"
        assert engine.num_open == 1, "the first goes on, and there is no second"
        engine.release()
        received = await read_until(stream, b"finish_reason")
        assert b"x-request-id: mine" in received.lower()
        for key, named in (("a1", "mine"), ("b1", "mine"), ("a1", "mine")):
            assert (await ask(key=key, **{"X-Request-Id": named})).status_code == 200
