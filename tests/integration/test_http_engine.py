"""HTTP over the real engine, with a runner that computes letters: what crosses the seam between the two."""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.fakes import FakeRunner, fake_client
from tests.triolet.web.serving import events_of, request_bytes, serving
from tests.triolet.web.test_answer import fold_completion

from triolet import Engine
from triolet.plan import StepPlan
from triolet.web import serve
from triolet.web.tracing import Tracing

pytestmark = pytest.mark.anyio


def make(byte_model: Path, runner: FakeRunner | None = None, **options: Any) -> Engine:
    return Engine(
        model=str(byte_model),
        served_model_name="letters",
        client_factory=fake_client(runner or FakeRunner()),
        **options,
    )


async def eventually(condition: Callable[[], bool], *, seconds: float = 2) -> None:
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - the engine tells its statistics only when asked
            await anyio.sleep(0.002)


def is_free(engine: Engine) -> bool:
    scheduler = engine.statistics().scheduler
    return (
        scheduler.num_running == scheduler.num_waiting == 0
        and scheduler.num_free_blocks == scheduler.num_blocks
    )


class TestAnswers:
    async def test_text_stops_and_usage(self, anyio_backend_name: str, byte_model: Path) -> None:
        body = {"prompt": "abc", "max_tokens": 50, "stop": ["hij"]}
        async with serving(make(byte_model), anyio_backend_name) as running:
            plain = (await running.client.post("/v1/completions", json=body)).json()
            streaming = body | {"stream": True, "stream_options": {"include_usage": True}}
            events = events_of((await running.client.post("/v1/completions", json=streaming)).text)
        assert plain["model"] == "letters"
        (choice,) = plain["choices"]
        assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("defg", "stop", "hij")
        assert fold_completion(events[:-1])[0]["text"] == "defg"
        assert events[-2]["usage"] == plain["usage"]

    async def test_the_times_of_a_span_add_up(
        self, anyio_backend_name: str, byte_model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        monkeypatch.setattr(serve, "open_tracing", lambda args: Tracing(provider))
        may_step = threading.Semaphore(1)

        def hold(plan: StepPlan) -> None:
            assert not plan.rows or may_step.acquire(timeout=30)

        engine = make(byte_model, FakeRunner(fail=hold))
        body = {"prompt": ["abc", "d"], "max_tokens": 5, "stream": True}
        async with (
            serving(engine, anyio_backend_name) as running,
            running.client.stream("POST", "/v1/completions", json=body) as answer,
        ):
            may_step.release(100)  # the first token has been told before there is another
            await answer.aread()
        (span,) = exporter.get_finished_spans()
        told: dict[str, Any] = dict(span.attributes or {})
        queue, prefill, decode, first, whole = (
            told[f"gen_ai.latency.{name}"]
            for name in (
                "time_in_queue", "time_in_model_prefill", "time_in_model_decode", "time_to_first_token", "e2e"
            )
        )  # fmt: skip
        assert min(queue, prefill, decode) > 0
        assert queue + prefill == pytest.approx(first)
        assert first + decode <= whole
        assert [event.name for event in span.events] == ["first step", "first token"]

    @pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
    async def test_progress_of_a_long_prompt(
        self, anyio_backend_name: str, byte_model: Path, path: str
    ) -> None:
        text = "x" * 300
        prompt = {"messages": [{"role": "user", "content": text}]} if "chat" in path else {"prompt": text}
        body = prompt | {"max_tokens": 3, "stream": True, "stream_options": {"include_usage": True}}
        engine = make(byte_model, max_num_batched_tokens=64, max_num_seqs=8)
        async with serving(engine, anyio_backend_name) as running:
            asked, again, unasked = [
                events_of((await running.client.post(path, json=body | options)).text)[:-1]
                for options in ({"return_progress": True}, {"return_progress": True}, {})
            ]
        usage = asked[-1]["usage"]
        told = [event["prompt_progress"] for event in asked if "prompt_progress" in event]
        # Steps that end in one turn of the loop are told as one.
        ends = {*range(64, usage["prompt_tokens"], 64), usage["prompt_tokens"]}
        processed = [one["processed"] for one in told]
        assert processed == sorted(ends & {*processed})
        assert processed[-1] == usage["prompt_tokens"]
        assert {(one["total"], one["cache"]) for one in told} == {(usage["prompt_tokens"], 0)}
        times = [one["time_ms"] for one in told]
        assert times == sorted(times)
        (last,) = [event["prompt_progress"] for event in again if "prompt_progress" in event]
        assert last["cache"] == again[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        assert not any("prompt_progress" in event for event in unasked)
        texts = [
            "".join(
                choice.get("text") or choice.get("delta", {}).get("content") or ""
                for event in events
                if "prompt_progress" not in event
                for choice in event["choices"]
            )
            for events in (asked, unasked)
        ]
        assert texts[0] == texts[1] != ""

    async def test_chat_goes_through_the_template(self, anyio_backend_name: str, byte_model: Path) -> None:
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "logprobs": True}
        async with serving(make(byte_model), anyio_backend_name) as running:
            answer = (await running.client.post("/v1/chat/completions", json=body)).json()
        assert answer["usage"]["prompt_tokens"] == len("[user]hi\n[assistant]")
        content = answer["choices"][0]["logprobs"]["content"]
        assert "".join(entry["token"] for entry in content) == answer["choices"][0]["message"]["content"]
        assert content[0]["bytes"] == [ord(content[0]["token"])]

    async def test_tokens_are_those_of_the_requests(self, anyio_backend_name: str, byte_model: Path) -> None:
        messages = [{"role": "user", "content": "hi"}]
        async with serving(make(byte_model), anyio_backend_name) as running:
            path = "/v1/chat/completions/render"
            rendered = (await running.client.post(path, json={"messages": messages})).json()
            tokens = (await running.client.post("/tokenize", json={"messages": messages})).json()["tokens"]
            text = (await running.client.post("/detokenize", json={"tokens": tokens})).json()["prompt"]
        assert rendered["prompt"] == text == "[user]hi\n[assistant]"
        assert rendered["token_ids"] == tokens

    async def test_the_seed_in_the_answer_is_the_one_to_send(
        self, anyio_backend_name: str, byte_model: Path
    ) -> None:
        async with serving(make(byte_model, seed=1), anyio_backend_name) as running:
            body = {"prompt": "abc", "max_tokens": 2}
            seeds = []
            for _ in range(2):
                answer = (await running.client.post("/v1/completions", json=body)).json()
                seeds.append(answer["choices"][0]["seed"])
            body["seed"] = seeds[0]
            again = (await running.client.post("/v1/completions", json=body)).json()
        assert seeds[0] != seeds[1]
        assert again["choices"][0]["seed"] == seeds[0]

    @pytest.mark.parametrize(
        ("body", "status", "param"),
        [
            ({"prompt": ""}, 400, "prompt"),
            ({"prompt": [100_000]}, 400, "prompt"),
            ({"prompt": "x" * 5000}, 400, "prompt"),
            ({"prompt": "abc", "max_tokens": 5000}, 400, "max_tokens"),
        ],
    )
    async def test_what_the_model_cannot_do_is_named(
        self, anyio_backend_name: str, byte_model: Path, body: Any, status: int, param: str
    ) -> None:
        engine = make(byte_model)
        async with serving(engine, anyio_backend_name) as running:
            response = await running.client.post("/v1/completions", json=body)
            assert response.status_code == status, response.text
            assert response.json()["error"]["param"] == param
            assert is_free(engine)

    async def test_a_full_queue_is_a_429_that_says_when(
        self, anyio_backend_name: str, byte_model: Path
    ) -> None:
        runner = FakeRunner()
        engine = make(byte_model, runner, max_num_seqs=1, max_num_queued_requests=1)
        async with (
            serving(engine, anyio_backend_name, shutdown_timeout=10.0) as running,
            anyio.create_task_group() as group,
        ):
            runner.gate.clear()

            async def ask(statuses: list[int]) -> None:
                body = {"prompt": "abc", "max_tokens": 2}
                statuses.append((await running.client.post("/v1/completions", json=body)).status_code)

            statuses: list[int] = []
            group.start_soon(ask, statuses)
            await anyio.to_thread.run_sync(runner.is_held.wait)
            group.start_soon(ask, statuses)
            await eventually(lambda: engine.statistics().scheduler.num_waiting == 1)
            refused = await running.client.post("/v1/completions", json={"prompt": "abc"})
            assert refused.status_code == 429
            assert int(refused.headers["Retry-After"]) >= 1
            runner.gate.set()
        assert statuses == [200, 200]

    async def test_two_megabytes_of_text_hold_nobody_up(
        self, anyio_backend_name: str, byte_model: Path
    ) -> None:
        waits: list[float] = []

        async def probe() -> None:
            while True:
                start = time.process_time()  # a busy machine is not what is looked for
                assert (await running.client.get("/live")).status_code == 200
                waits.append(time.process_time() - start)

        async with (
            serving(make(byte_model), anyio_backend_name) as running,
            anyio.create_task_group() as group,
        ):
            group.start_soon(probe)
            for path, field in (("completions", "prompt"), ("chat/completions", "messages")):
                text = "words " * 350_000
                body = {field: text if field == "prompt" else [{"role": "user", "content": text}]}
                refused = await running.client.post(f"/v1/{path}", json=body)
                error = refused.json()["error"]
                assert (refused.status_code, error["code"]) == (400, "context_length_exceeded"), error
            group.cancel_scope.cancel()
        assert len(waits) > 4
        assert max(waits) < 1.0


PHASES = ("queued", "prefill", "decode")


class TestLeaving:
    """A client that leaves: its slot and blocks are free after the step under way."""

    @pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])
    @pytest.mark.parametrize("phase", PHASES)
    async def test_the_slot_is_free_after_the_step_under_way(
        self, anyio_backend_name: str, byte_model: Path, phase: str, is_streamed: bool
    ) -> None:
        runner = FakeRunner(num_blocks=64)
        engine = make(byte_model, runner, max_num_seqs=1)
        body = {"prompt": "abc" * 20, "max_tokens": 400, "stream": is_streamed}
        async with serving(engine, anyio_backend_name) as running:
            others = await self._hold(phase, runner, engine, running.port)
            client = socket.create_connection(("127.0.0.1", running.port))
            client.sendall(request_bytes("/v1/completions", body))
            await self._wait_for(phase, runner, engine)
            client.close()
            for other in others:
                other.close()
            await eventually(lambda: engine.statistics().outcomes.get("abort", 0) == 1 + len(others))
            num_steps = runner.num_steps
            runner.gate.set()
            await eventually(lambda: is_free(engine))
            assert runner.num_steps <= num_steps + 1
            answer = await running.client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 2})
            assert answer.json()["choices"][0]["text"] == "de"

    async def _hold(self, phase: str, runner: FakeRunner, engine: Engine, port: int) -> list[socket.socket]:
        if phase == "decode":
            return []
        runner.gate.clear()
        if phase == "prefill":
            return []
        first = socket.create_connection(("127.0.0.1", port))
        first.sendall(request_bytes("/v1/completions", {"prompt": "abc", "max_tokens": 400}))
        await anyio.to_thread.run_sync(runner.is_held.wait)
        return [first]

    async def _wait_for(self, phase: str, runner: FakeRunner, engine: Engine) -> None:
        if phase == "queued":
            await eventually(lambda: engine.statistics().scheduler.num_waiting == 1)
            return
        if phase == "decode":
            await eventually(lambda: runner.num_steps >= 3)
            runner.gate.clear()
        await anyio.to_thread.run_sync(runner.is_held.wait)

    async def test_nothing_grows_with_requests_that_were_left(
        self, anyio_backend_name: str, byte_model: Path
    ) -> None:
        runner = FakeRunner()
        engine = make(byte_model, runner)
        async with serving(engine, anyio_backend_name) as running:
            for number in range(30):
                client = socket.create_connection(("127.0.0.1", running.port))
                client.sendall(request_bytes("/v1/completions", {"prompt": "abc", "max_tokens": 400}))
                await eventually(lambda: engine.statistics().scheduler.num_running > 0)
                client.close()
                await eventually(lambda: is_free(engine))
                assert engine.statistics().outcomes["abort"] == number + 1
            gc.collect()
            assert running.server.num_open_requests == 0


class TestFailing:
    async def test_a_failed_step_fails_its_own_requests_alone(
        self, anyio_backend_name: str, byte_model: Path
    ) -> None:
        def fail(plan: StepPlan) -> None:
            if any(row.request.prompt_token_ids == tuple(b"bad") for row in plan.rows):
                raise MemoryError("out of memory")

        engine = make(byte_model, FakeRunner(fail=fail))
        async with serving(engine, anyio_backend_name) as running:
            for is_streamed in (False, True):
                body = {"prompt": "bad", "stream": is_streamed}
                failed = await running.client.post("/v1/completions", json=body)
                assert failed.status_code == 500
                assert "out of memory" in failed.json()["error"]["message"]
            good = await running.client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 3})
            assert good.json()["choices"][0]["text"] == "def"
            assert is_free(engine)
