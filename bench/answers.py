"""Completions asked for over HTTP while the server's engines fail, and what became of each.

An answer is whole and right, or it failed with a cause that the client was told; all else is a violation.
Knows nothing of processes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx

__all__ = ["Job", "Verdict", "ask", "expected_texts", "judge_body", "judge_stream", "make_jobs"]

REQUEST_TIMEOUT = 90.0
MAX_TOKENS = 48


@dataclass(frozen=True, slots=True)
class Job:
    """One completion, whose text is known beforehand."""

    prompt: str
    max_tokens: int
    seed: int
    expected: str = ""

    @property
    def body(self) -> dict[str, Any]:
        return {"prompt": self.prompt, "max_tokens": self.max_tokens, "seed": self.seed, "temperature": 1.0}


@dataclass(frozen=True, slots=True)
class Verdict:
    """``kind``: ``answered``, ``failed`` (``told`` is the cause), or ``violation`` (of what)."""

    kind: str
    told: str = ""


@dataclass(slots=True)
class _Stream:
    text: str = ""
    error: str | None = None
    is_finished: bool = False
    is_done: bool = False
    late: list[str] = field(default_factory=list)


def make_jobs(num_jobs: int, seed: int, *, max_tokens: int = MAX_TOKENS) -> list[Job]:
    """Jobs with prompts and lengths of all kinds, always the same."""
    dice = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz ,."
    return [
        Job(
            prompt="".join(dice.choices(letters, k=dice.randint(1, 120))),
            max_tokens=dice.randint(1, max_tokens),
            seed=dice.randrange(2**31),
        )
        for _ in range(num_jobs)
    ]


def expected_texts(model: str, jobs: Sequence[Job]) -> list[Job]:
    """The jobs with the texts that one process writes, in which nothing fails."""
    from triolet import LLM, SamplingParams

    params = [SamplingParams(max_tokens=job.max_tokens, seed=job.seed, temperature=1.0) for job in jobs]
    with LLM(model=model, num_threads=1) as llm:
        outputs = llm.generate([job.prompt for job in jobs], params, use_tqdm=False)
    return [
        Job(job.prompt, job.max_tokens, job.seed, output.outputs[0].text)
        for job, output in zip(jobs, outputs, strict=True)
    ]


async def ask(client: httpx.AsyncClient, job: Job, *, is_streamed: bool) -> Verdict:
    """Ask for a completion and judge what comes."""
    try:
        with anyio.fail_after(REQUEST_TIMEOUT):
            response = await client.post("/v1/completions", json=job.body | {"stream": is_streamed})
    except TimeoutError:
        return Verdict("violation", f"no end within {REQUEST_TIMEOUT:g} s")
    except httpx.TransportError as error:
        return Verdict("violation", f"{type(error).__name__}: {error}")
    if is_streamed and response.status_code == 200:
        return judge_stream(response.text, job.expected)
    return judge_body(response.status_code, response.text, job.expected)


def judge_body(status: int, body: str, expected: str) -> Verdict:
    """Of an answer in one piece, or of a refusal."""
    try:
        content = json.loads(body)
        if status == 200:
            return _judge_text(content["choices"][0]["text"], expected)
        told = content["error"]["message"]
    except (ValueError, LookupError, TypeError):
        return Verdict("violation", f"status {status} with {body[:200]!r}")
    if status < 500 or not told:
        return Verdict("violation", f"status {status}: {told}")
    return Verdict("failed", told)


def judge_stream(text: str, expected: str) -> Verdict:
    """Of the events of a stream with status 200."""
    stream = _Stream()
    for line in text.splitlines():
        if line.startswith("data: "):
            _take(stream, line.removeprefix("data: "))
    if not stream.is_done:
        return Verdict("violation", f"a stream without an end, after {stream.text!r}")
    if stream.late:
        return Verdict("violation", f"events after the end: {stream.late}")
    if stream.error is not None:
        if not expected.startswith(stream.text):
            return Verdict("violation", f"wrong text before an error: {stream.text!r} for {expected!r}")
        return (
            Verdict("failed", stream.error)
            if stream.error
            else Verdict("violation", "an error without a cause")
        )
    if not stream.is_finished:
        return Verdict("violation", "an end without a reason")
    return _judge_text(stream.text, expected)


def _take(stream: _Stream, data: str) -> None:
    if stream.is_done:
        stream.late.append(data)
    elif data == "[DONE]":
        stream.is_done = True
    else:
        event = json.loads(data)
        if "error" in event:
            stream.error = event["error"]["message"]
        for choice in event.get("choices", []):
            stream.text += choice["text"]
            stream.is_finished |= choice["finish_reason"] is not None


def _judge_text(text: str, expected: str) -> Verdict:
    if text == expected:
        return Verdict("answered")
    return Verdict("violation", f"wrong text: {text!r} instead of {expected!r}")
