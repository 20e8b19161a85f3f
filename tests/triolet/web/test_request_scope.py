"""What belongs to a request until its answer is out."""

from __future__ import annotations

from typing import Any

import pytest

from triolet.web.request_scope import SCOPE_KEY, RequestScopes

pytestmark = pytest.mark.anyio


async def test_what_a_request_holds_is_let_go_before_its_last_bytes() -> None:
    steps: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope[SCOPE_KEY].exits.callback(steps.append, "let go")
        await send({"type": "http.response.body", "more_body": True})
        await send({"type": "http.response.body"})

    async def send(message: Any) -> None:
        steps.append("more" if message.get("more_body") else "last")

    await RequestScopes(app)({"type": "http"}, None, send)  # type: ignore[arg-type]
    assert steps == ["more", "let go", "last"]


async def test_and_when_there_is_no_answer() -> None:
    steps: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope[SCOPE_KEY].exits.callback(steps.append, "let go")
        raise OSError

    with pytest.raises(OSError):
        await RequestScopes(app)({"type": "http"}, None, None)  # type: ignore[arg-type]
    assert steps == ["let go"]


async def test_one_scope_is_enough_and_other_protocols_have_none() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope.get(SCOPE_KEY))

    await RequestScopes(RequestScopes(app))({"type": "http"}, None, None)  # type: ignore[arg-type]
    await RequestScopes(app)({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert seen[0] is not None
    assert seen[1] is None


async def test_it_tells_whether_the_whole_body_has_come() -> None:
    messages: list[Any] = [
        {"type": "http.request", "body": b"a", "more_body": True},
        {"type": "http.request", "body": b"b"},
        {"type": "http.disconnect"},
    ]
    seen: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(3):
            await receive()
            seen.append(scope[SCOPE_KEY].has_whole_body)

    async def receive() -> Any:
        return messages.pop(0)

    await RequestScopes(app)({"type": "http"}, receive, None)  # type: ignore[arg-type]
    assert seen == [False, True, True]
