"""Mutated requests, sent to a server over a real socket: each gets an answer that says what is wrong with it.

    python -m tests.fuzz.http --iterations 100000

Behind mutated bodies is the real front end with a runner that makes letters up; behind mutated methods,
paths, queries and headers an engine that is whatever it is told to be. Every answer must be a success, of
which ``/openapi.json`` tells the truth, or an error in the shape of its API; those about bodies name a field.
None may be a server error, and the server is as it was.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import httpx
from jsonschema import ValidationError
from tests.conftest import CHAT_TEMPLATE
from tests.fakes import FakeRunner, fake_client, write_byte_model
from tests.fuzz.bodies import mutated
from tests.fuzz.calls import Call, random_call
from tests.fuzz.progress import Progress, silent, spoken
from tests.triolet.web.documented import check_documented, is_documented
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import Running, serving

from triolet import Engine
from triolet.statistics import EngineState

__all__ = ["fuzz", "fuzz_calls", "main"]

ADMIN = {"Authorization": "Bearer root"}
TELL_EVERY = 5000
ENDS = (b"data: [DONE]\n\n", b"event: message_stop", b'"type":"response.')
WHOLE = ("JSON", "body")
"""What errors speak of that are about no field, but about all that was sent."""


async def fuzz(
    model: Path, iterations: int, *, seed: int, backend: str, progress: Progress = silent
) -> Counter[str]:
    """How often each path answered with each status. Raises AssertionError naming the body."""
    source = random.Random(seed)
    outcomes: Counter[str] = Counter()
    engine = Engine(
        model=str(model),
        served_model_name="letters",
        max_model_len=96,
        client_factory=fake_client(FakeRunner()),
    )
    async with serving(engine, backend, admin_api_key="root") as running:
        for number in range(iterations):
            progress(number)
            path, data = mutated(source)
            try:
                response = await ask(running, path, data)
                check(path, response)
            except (AssertionError, httpx.HTTPError, ValueError) as error:
                raise AssertionError(f"{path} {data!r}: {error!r}") from error
            outcomes[f"{path} {response.status_code}"] += 1
        await check_health(running, engine)
    return outcomes


async def fuzz_calls(
    iterations: int, *, seed: int, backend: str, progress: Progress = silent
) -> Counter[str]:
    """How often calls were answered with each status. Raises AssertionError naming the call."""
    source = random.Random(seed)
    outcomes: Counter[str] = Counter()
    engine = FakeEngine(reply="abc")
    async with serving(engine, backend, admin_api_key="root") as running:
        kept = await running.client.post("/v1/responses", json={"input": "a"}, headers=ADMIN)
        for number in range(iterations):
            progress(number)
            call = random_call(source, kept.json()["id"])
            try:
                response = await make(running, call)
                check_call(response)
            except (AssertionError, httpx.HTTPError, ValueError, ValidationError) as error:
                raise AssertionError(f"{call}: {error!r}") from error
            outcomes[str(response.status_code)] += 1
            # What was paused, put to sleep or drained is as before.
            engine.state, engine.is_paused, engine.is_sleeping = EngineState.READY, False, False
        assert (await running.client.get("/health", headers=ADMIN)).is_success
        assert engine.num_open == 0
    return outcomes


async def make(running: Running, call: Call) -> httpx.Response:
    """The answer to a call, which goes out as it is; and a second time, as bodies do."""
    url = running.client.base_url.copy_with(raw_path=call.target)
    request = httpx.Request(
        call.method, url, headers=[(name.encode(), value) for name, value in call.headers], content=call.body
    )
    try:
        return await running.client.send(request)
    except (httpx.RemoteProtocolError, httpx.ReadTimeout):
        return await running.client.send(request)


def check_call(response: httpx.Response) -> None:
    """Raises for an answer that must not be."""
    method = response.request.method
    assert response.status_code < 500 or response.status_code == 501, response.text
    if method in ("HEAD", "OPTIONS") or response.status_code == 304:
        return
    if is_documented(response):
        check_documented(response)
    elif not response.is_success:
        assert response.json()["error"]["message"], response.text


async def ask(running: Running, path: str, data: bytes) -> httpx.Response:
    """The answer to a body.

    Where the connection was closed for being idle, or the time for the answer is up, as after this process
    was stopped for a while, it is sent again: one that the server cannot stand will be cut off a second time.
    """
    try:
        return await running.client.post(path, content=data, headers=ADMIN, timeout=60)
    except (httpx.RemoteProtocolError, httpx.ReadTimeout):
        return await running.client.post(path, content=data, headers=ADMIN, timeout=60)


def check(path: str, response: httpx.Response) -> None:
    """Raises AssertionError or ValueError for an answer that must not be."""
    assert response.status_code < 500, response.text
    if response.status_code == 200:
        if response.headers["Content-Type"].startswith("text/event-stream"):
            assert any(end in response.content[-4000:] for end in ENDS), response.text[-300:]
            assert b'"code":"internal' not in response.content, response.text[-300:]
        else:
            assert isinstance(response.json(), dict), response.text
        return
    error: dict[str, Any] = response.json()["error"]
    assert error["message"]
    assert error["type"]
    if path.startswith("/v1/messages"):
        return
    assert error.keys() == {"message", "type", "param", "code"}
    is_about_all = any(word in error["message"] for word in WHOLE)
    assert error["param"] or is_about_all or response.status_code != 400, error


async def check_health(running: Running, engine: Engine) -> None:
    """Nothing is under way, and a good request is answered as ever."""
    assert (await running.client.get("/health", headers=ADMIN)).status_code == 200
    with anyio.fail_after(60):
        await engine.wait_idle()
    answer = await running.client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 3})
    assert answer.json()["choices"][0]["text"] == "def"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", choices=("asyncio", "trio"), default="asyncio")
    options = parser.parse_args()
    asked = {"seed": options.seed, "backend": options.backend}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        model = write_byte_model(Path(folder) / "bytes", chat_template=CHAT_TEMPLATE)
        outcomes = anyio.run(
            lambda: fuzz(model, options.iterations, **asked, progress=spoken(TELL_EVERY)),
            backend=options.backend,
        )
        outcomes += anyio.run(
            lambda: fuzz_calls(options.iterations, **asked, progress=spoken(TELL_EVERY)),
            backend=options.backend,
        )
    print(json.dumps(dict(sorted(outcomes.items())), indent=1))
    print(f"{outcomes.total()} requests in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
