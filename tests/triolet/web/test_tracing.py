"""Spans: what they tell, whose trace they are in, and that sending them holds nothing up."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anyio
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import request_bytes, serving

from triolet.args import ServeArgs
from triolet.errors import UsageError
from triolet.web import serve, tracing
from triolet.web.tracing import Tracing, open_tracing

pytestmark = pytest.mark.anyio
SECRET = "my cat's name is Felix"
CHAT = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 5, "temperature": 0.5}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """What a server of this test has told."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(serve, "open_tracing", lambda args: Tracing(provider))
    return exporter


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_span_tells_all_but_the_content(
    anyio_backend_name: str, exporter: InMemorySpanExporter, is_streamed: bool
) -> None:
    headers = {"traceparent": PARENT, "X-Request-Id": "mine"}
    async with serving(FakeEngine(), anyio_backend_name) as running:
        body = CHAT | {"stream": is_streamed}
        response = await running.client.post("/v1/chat/completions", json=body, headers=headers)
        await running.client.get("/metrics")
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.kind.name) == ("chat fake/model", "SERVER")
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}-{span.parent.span_id:016x}" == PARENT[3:-3]
    told = attributes_of(span)
    assert told["gen_ai.response.id"] in response.text
    assert told["gen_ai.response.finish_reasons"] == ("length",)
    assert (told["gen_ai.usage.output_tokens"], told["gen_ai.request.max_tokens"]) == (5, 5)
    assert (told["gen_ai.request.temperature"], told["gen_ai.request.choice.count"]) == (0.5, 1)
    assert (told["http.response.status_code"], told["triolet.request_id"]) == (200, "mine")
    assert "error.type" not in told
    assert span.start_time is not None
    assert span.end_time is not None
    assert 0 < span.end_time - span.start_time < 10e9
    assert "Felix" not in span.to_json()
    assert "Hello" not in span.to_json()


async def test_a_request_that_is_given_up_or_fails_is_an_error(
    anyio_backend_name: str, exporter: InMemorySpanExporter
) -> None:
    engine = FakeEngine(hold_at=2)
    async with serving(engine, anyio_backend_name) as running:
        async with await running.connect() as stream:
            await stream.send(request_bytes("/v1/completions", {"prompt": SECRET, "stream": True}))
            await engine.wait_held()
        await engine.wait_idle()
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: running.client.post("/v1/completions", json={"prompt": "hi"}))
            await engine.wait_open(1)
            await engine.wait_held()
            engine.die("the device is on fire")
    left, failed = exporter.get_finished_spans()
    assert attributes_of(left)["error.type"] == "client_disconnected"
    assert attributes_of(failed)["error.type"] == "EngineDeadError"
    assert attributes_of(failed)["gen_ai.operation.name"] == "text_completion"
    assert left.status.status_code.name == failed.status.status_code.name == "ERROR"
    assert left.parent is None


async def test_what_a_shutdown_cuts_off_is_not_the_clients_doing(
    anyio_backend_name: str, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "FLUSH_SECONDS", 0.1)
    engine = FakeEngine(hold_at=2)
    monkeypatch.setattr(engine, "abort_all", lambda reason: None)  # as where an engine hangs
    async with serving(engine, anyio_backend_name) as running, await running.connect() as stream:
        await stream.send(request_bytes("/v1/completions", {"prompt": SECRET, "stream": True}))
        await engine.wait_held()
        await running.server.drain()
        await running.is_over.wait()
    (span,) = exporter.get_finished_spans()
    assert attributes_of(span)["error.type"] == "shutdown"


async def test_an_answer_that_cannot_be_written_is_an_error(
    anyio_backend_name: str, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("this is a mistake of ours")

    monkeypatch.setattr("triolet.web.chat.ChatShape.plain", fail)
    async with serving(FakeEngine(), anyio_backend_name) as running:
        assert (await running.client.post("/v1/chat/completions", json=CHAT)).status_code == 500
    (span,) = exporter.get_finished_spans()
    assert attributes_of(span)["error.type"] == "500"


class Receiver:
    """An OTLP receiver on this machine. ``is_stuck``: it takes what comes and never answers."""

    def __init__(self, *, is_stuck: bool) -> None:
        self.spans: list[Any] = []
        self.paths: list[str] = []
        self.leave = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                message = ExportTraceServiceRequest()
                message.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.paths.append(self.path)
                for resource in message.resource_spans:
                    for scope in resource.scope_spans:
                        receiver.spans += scope.spans
                if is_stuck:
                    receiver.leave.wait(20)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def open(self) -> Iterator[Receiver]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.leave.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join()


async def test_a_real_receiver_gets_the_last_span_before_the_end(anyio_backend_name: str) -> None:
    with Receiver(is_stuck=False).open() as receiver:
        async with serving(FakeEngine(), anyio_backend_name, otlp_traces_endpoint=receiver.url) as running:
            await running.client.post("/v1/chat/completions", json=CHAT)
        (span,) = receiver.spans
    assert (span.name, receiver.paths) == ("chat fake/model", ["/v1/traces"])


async def test_a_receiver_that_is_stuck_does_not_hold_up_the_end(
    anyio_backend_name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracing, "SHUTDOWN_SECONDS", 0.2)
    with Receiver(is_stuck=True).open() as receiver:
        async with serving(FakeEngine(), anyio_backend_name, otlp_traces_endpoint=receiver.url) as running:
            await running.client.post("/v1/chat/completions", json=CHAT)
            with anyio.fail_after(30):
                await running.server.drain()
                await running.is_over.wait()
    assert "could not be sent in time" in caplog.text


def test_where_traces_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:1"}
    assert open_tracing(ServeArgs(), {}) is None
    assert open_tracing(ServeArgs(), environment | {"OTEL_SDK_DISABLED": "true"}) is None
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with caplog.at_level(logging.WARNING):
        assert open_tracing(ServeArgs(), environment) is None
    assert "opentelemetry.sdk.trace" in caplog.text
    with pytest.raises(UsageError, match=r"pip install 'triolet\[otel\]'"):
        open_tracing(ServeArgs(otlp_traces_endpoint="http://localhost:1"), {})


def test_a_path_is_added_where_there_is_none() -> None:
    for given, full in (
        ("http://x:4318", "http://x:4318/v1/traces"),
        ("http://x:4318/", "http://x:4318/v1/traces"),
        ("http://x/a", "http://x/a"),
        (None, None),
    ):
        assert tracing._full_url(given) == full
