"""The control routes over the real engine, called in odd orders while requests run."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.fakes import FakeRunner
from tests.integration.test_http_engine import eventually, is_free, make
from tests.triolet.web.serving import Running, serving

pytestmark = pytest.mark.anyio
ADMIN = {"Authorization": "Bearer root"}
LONG = {"prompt": "abc", "max_tokens": 400}
NUM_CALLS = 30
MODES = ("abort", "wait", "keep")
CALLS = (
    *(f"/pause?mode={mode}&clear_cache={flag}" for mode in MODES for flag in ("true", "false")),
    *(f"/sleep?mode={mode}&level={level}" for mode in MODES for level in (0, 1, 2)),
    "/wake_up", "/wake_up?tags=weights", "/wake_up?tags=kv_cache", "/wake_up?tags=scheduling",
    "/reset_prefix_cache", "/reset_prefix_cache?reset_running_requests=true", "/abort_requests",
    *["/resume"] * 4,
)  # fmt: skip


async def control(running: Running, call: str) -> tuple[int, Any]:
    body = {"request_ids": "all"} if call == "/abort_requests" else None
    response = await running.client.post(call, headers=ADMIN, json=body)
    return response.status_code, response.json()


async def ask(running: Running, body: dict[str, Any]) -> tuple[int, Any]:
    response = await running.client.post("/v1/completions", json=body)
    return response.status_code, response.json()


@pytest.mark.parametrize("first", ["/pause?mode=wait", "/sleep?mode=wait"])
async def test_an_abort_overtakes_a_wait_and_a_second_resume_changes_nothing(
    anyio_backend_name: str, byte_model: Path, first: str
) -> None:
    runner = FakeRunner()
    told: dict[str, tuple[int, Any]] = {}
    async with serving(make(byte_model, runner), anyio_backend_name, admin_api_key="root") as running:

        async def keep(name: str, call: Any, *arguments: Any) -> None:
            told[name] = await call(running, *arguments)

        runner.gate.clear()
        async with anyio.create_task_group() as group:
            group.start_soon(keep, "request", ask, LONG)
            await anyio.to_thread.run_sync(runner.is_held.wait)
            group.start_soon(keep, "wait", control, first)
            await eventually(lambda: running.engine.is_paused)
            group.start_soon(keep, "abort", control, "/pause?mode=abort")
            await eventually(lambda: running.engine.statistics().outcomes == {"abort": 1})
            runner.gate.set()
        assert {name: code for name, (code, _) in told.items()} == {"request": 200, "wait": 200, "abort": 200}
        assert told["request"][1]["choices"][0]["finish_reason"] == "abort"
        assert runner.num_steps == 1, "nothing was waited for"
        await control(running, "/wake_up")
        assert [(await control(running, "/resume"))[0] for _ in range(2)] == [200, 200]
        assert (await ask(running, LONG))[0] == 200


# httpx leaves the body of a request that is cancelled to the garbage collector, of which Trio warns.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seed", range(2))
async def test_no_order_of_calls_breaks_the_engine(
    anyio_backend_name: str, byte_model: Path, seed: int
) -> None:
    generator = random.Random(seed)
    engine = make(byte_model, FakeRunner(), max_num_seqs=3, max_num_queued_requests=8)
    control_codes: list[tuple[str, int]] = []
    codes: list[int] = []
    async with serving(engine, anyio_backend_name, admin_api_key="root") as running:
        _, expected = await ask(running, LONG)

        async def call(path: str) -> None:
            code, _ = await control(running, path)
            control_codes.append((path, code))

        async def load(num_tokens: int, num_choices: int, patience: float) -> None:
            with anyio.move_on_after(patience):
                body = {"prompt": "abc", "max_tokens": num_tokens, "n": num_choices}
                codes.append((await ask(running, body))[0])

        async with anyio.create_task_group() as group:
            for _ in range(NUM_CALLS):
                group.start_soon(call, generator.choice(CALLS))
                patience = generator.choice([0.01, 20])
                group.start_soon(load, generator.randint(1, 60), generator.choice([1, 1, 4]), patience)
                await anyio.sleep(generator.choice([0, 0, 0.005]))
            while engine.is_paused or not is_free(engine) or len(control_codes) < NUM_CALLS:
                await control(running, "/wake_up")
                await control(running, "/resume")
        assert {code for _, code in control_codes} <= {200, 400, 409}
        assert {path for path, code in control_codes if code == 400} <= {"/wake_up?tags=scheduling"}
        assert set(codes) <= {200, 429, 503}
        await eventually(lambda: is_free(engine))
        _, answer = await ask(running, LONG)
        assert answer["choices"][0]["text"] == expected["choices"][0]["text"]
