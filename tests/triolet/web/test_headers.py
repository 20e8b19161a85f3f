"""Request headers that mean something."""

from __future__ import annotations

from typing import Any

import pytest
from quart import Quart
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import serving
from werkzeug.datastructures import Headers

from triolet.web.headers import given_header

pytestmark = pytest.mark.anyio
CHAT = {"messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("header", "field", "timeout"), [("2.5", None, 2.5), ("3", 2.0, 2.0), ("1", 2.0, 1.0), (None, 2.0, 2.0)]
)
async def test_the_shorter_time_holds(
    anyio_backend_name: str, header: str | None, field: float | None, timeout: float
) -> None:
    engine = FakeEngine()
    headers = {} if header is None else {"X-Request-Timeout": header}
    bodies: dict[str, dict[str, Any]] = {"/v1/completions": {"prompt": "x"}, "/v1/chat/completions": CHAT}
    async with serving(engine, anyio_backend_name) as running:
        for path, body in bodies.items():
            answer = await running.client.post(path, json=body | {"timeout": field}, headers=headers)
            assert answer.status_code == 200
    assert [asked["options"].timeout for _, _, asked in engine.submitted] == [timeout] * 2


@pytest.mark.parametrize("header", ["", "0", "-1", "soon", "1e3", "nan", "inf", "86401", "9" * 400])
async def test_a_time_that_is_none_is_refused(anyio_backend_name: str, header: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        response = await running.client.post(
            "/v1/chat/completions", json=CHAT, headers={"X-Request-Timeout": header}
        )
    assert (response.status_code, response.json()["error"]["param"]) == (400, "X-Request-Timeout")


@pytest.mark.parametrize(("given", "is_echoed"), [("abc-1", True), ("x" * 128, True), ("x" * 129, False)])
async def test_an_id_is_echoed_if_it_can_be(anyio_backend_name: str, given: str, is_echoed: bool) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        response = await running.client.get("/live", headers={"X-Request-Id": given})
    assert (response.headers["X-Request-Id"] == given) == is_echoed


@pytest.mark.parametrize(("header", "rank"), [("0", 0), ("12", 12), (None, None)])
async def test_a_rank_may_be_named(anyio_backend_name: str, header: str | None, rank: int | None) -> None:
    engine = FakeEngine()
    headers = {} if header is None else {"X-data-parallel-rank": header}
    async with serving(engine, anyio_backend_name) as running:
        for path, body in {"/v1/completions": {"prompt": "x"}, "/v1/chat/completions": CHAT}.items():
            assert (await running.client.post(path, json=body, headers=headers)).status_code == 200
    assert [asked["options"].data_parallel_rank for _, _, asked in engine.submitted] == [rank] * 2


@pytest.mark.parametrize("header", ["", "-1", "one", "1.0", "1024", "9" * 400])
async def test_a_rank_that_is_none_is_refused(anyio_backend_name: str, header: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        response = await running.client.post(
            "/v1/chat/completions", json=CHAT, headers={"X-data-parallel-rank": header}
        )
    assert (response.status_code, response.json()["error"]["param"]) == (400, "X-data-parallel-rank")


@pytest.mark.parametrize(
    ("sent", "given"), [([], None), ([("X-Thing", "a"), ("x-thing", "b")], "a"), ([("X-Thing", "")], "")]
)
async def test_the_first_of_a_header_counts(sent: list[tuple[str, str]], given: str | None) -> None:
    app = Quart(__name__)
    async with app.test_request_context("/", headers=Headers(sent)):
        assert given_header(b"x-thing") == given
