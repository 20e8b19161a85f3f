"""Answers are judged: whole and right, failed with a cause, or a violation."""

from __future__ import annotations

import json

import httpx
import pytest
from bench.answers import Job, Verdict, ask, judge_body, judge_stream, make_jobs

EXPECTED = "abcd"
ERROR = {"error": {"message": "the engine died", "type": "server_error"}}


def chunk(text: str, reason: str | None = None) -> dict[str, object]:
    return {"choices": [{"text": text, "finish_reason": reason}]}


def events(*contents: object) -> str:
    lines = [content if isinstance(content, str) else json.dumps(content) for content in contents]
    return "".join(f"data: {line}\n\n" for line in lines)


@pytest.mark.parametrize(
    ("text", "kind", "told"),
    [
        (events(chunk("ab"), chunk("cd", "length"), "[DONE]"), "answered", ""),
        (": ping\n\n" + events(chunk("abcd", "length"), "[DONE]"), "answered", ""),
        (events(chunk("ab"), ERROR, "[DONE]"), "failed", "the engine died"),
        (events(ERROR, "[DONE]"), "failed", "the engine died"),
        (events(chunk("ab"), ERROR), "violation", "a stream without an end"),
        (events(chunk("abcd", "length")), "violation", "a stream without an end"),
        (events(chunk("ac"), ERROR, "[DONE]"), "violation", "wrong text before an error"),
        (events(chunk("ab"), {"error": {"message": ""}}, "[DONE]"), "violation", "without a cause"),
        (events(chunk("abcd"), "[DONE]"), "violation", "an end without a reason"),
        (events(chunk("abc", "length"), "[DONE]"), "violation", "wrong text"),
        (events(chunk("abcd", "length"), "[DONE]", chunk("e")), "violation", "events after the end"),
    ],
)
def test_streams(text: str, kind: str, told: str) -> None:
    verdict = judge_stream(text, EXPECTED)
    assert verdict.kind == kind
    assert told in verdict.told


@pytest.mark.parametrize(
    ("status", "body", "kind", "told"),
    [
        (200, chunk("abcd"), "answered", ""),
        (200, chunk("abcx"), "violation", "wrong text"),
        (503, ERROR, "failed", "the engine died"),
        (400, ERROR, "violation", "status 400"),
        (500, {"error": {"message": ""}}, "violation", "status 500"),
        (500, "oops", "violation", "status 500"),
    ],
)
def test_bodies(status: int, body: object, kind: str, told: str) -> None:
    verdict = judge_body(status, json.dumps(body), EXPECTED)
    assert verdict.kind == kind
    assert told in verdict.told


def test_jobs_are_always_the_same_and_different() -> None:
    jobs = make_jobs(30, 1)
    assert jobs == make_jobs(30, 1)
    assert len({job.prompt for job in jobs}) == 30


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_is_asked_and_a_connection_that_breaks() -> None:
    asked: list[dict[str, object]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        if len(asked) == 2:
            raise httpx.RemoteProtocolError("it broke off")
        return httpx.Response(200, text=events(chunk("abcd", "length"), "[DONE]"))

    transport = httpx.MockTransport(answer)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        job = Job("hi", 4, 5, EXPECTED)
        assert await ask(client, job, is_streamed=True) == Verdict("answered")
        verdict = await ask(client, job, is_streamed=False)
    assert verdict == Verdict("violation", "RemoteProtocolError: it broke off")
    assert asked[0] == {"prompt": "hi", "max_tokens": 4, "seed": 5, "temperature": 1.0, "stream": True}
