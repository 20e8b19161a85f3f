"""Traces: an OpenTelemetry span for each request that generates, without a word of what was said in it.

Spans are made when a request is over, from what is known of it by then: nothing is added to its steps.
This module needs the extra ``triolet[otel]`` only where traces are asked for.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio

from triolet.args import ServeArgs
from triolet.errors import UsageError
from triolet.request import RequestTimings
from triolet.sampling_params import BeamSearchParams, SamplingParams
from triolet.web.generation import Generation
from triolet.web.middleware import ASGIApp, Message, Receive, Scope, Send
from triolet.web.request_scope import SCOPE_KEY, RequestScope

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider

__all__ = ["Tracing", "open_tracing"]

ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
SHUTDOWN_SECONDS = 2.0
"""How long the last spans may take to be sent."""

logger = logging.getLogger("triolet.web")


class Tracing:
    """Gives ``provider`` a span for each request.

    ``clock`` is monotonic, ``wall_clock`` the time of day; both in seconds.
    """

    def __init__(
        self,
        provider: TracerProvider,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("triolet")
        self._clock = clock
        self._wall_clock = wall_clock

    def around(self, app: ASGIApp, has_ended_all: Callable[[], bool]) -> ASGIApp:
        """ASGI middleware. ``has_ended_all``: the server has given up what was not finished."""

        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            began = self._clock()
            status: list[int] = []

            async def noting_send(message: Message) -> None:
                if message["type"] == "http.response.start":
                    status.append(message["status"])
                await send(message)

            try:
                await app(scope, receive, noting_send)
            finally:
                self._tell(scope, status[0] if status else None, began, is_shutdown=has_ended_all())

        return traced

    async def close(self) -> None:
        """Send what is left, for as long as that may take; what the receiver does not take then is lost."""
        # A thread that does not keep the process, whatever the receiver does.
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        await anyio.to_thread.run_sync(closing.join, SHUTDOWN_SECONDS)
        if closing.is_alive():
            logger.warning("the last traces could not be sent in time")

    def _tell(self, scope: Scope, status: int | None, began: float, *, is_shutdown: bool) -> None:
        found: RequestScope | None = scope.get(SCOPE_KEY)
        if found is None or found.generation is None:
            return
        from opentelemetry.trace import SpanKind, Status, StatusCode

        ended = self._clock()
        offset = self._wall_clock() - ended
        attributes = dict(_attributes(scope, found, found.generation, status, ended))
        if (error := _error_type(found, found.generation, status, is_shutdown=is_shutdown)) is not None:
            attributes["error.type"] = error
        span = self._tracer.start_span(
            f"{attributes['gen_ai.operation.name']} {attributes['gen_ai.request.model']}",
            context=_parent(scope),
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=_nanoseconds(began + offset),
        )
        timings = found.generation.timings
        for name, at in (("first step", timings.started), ("first token", timings.first_token)):
            if at is not None:
                span.add_event(name, timestamp=_nanoseconds(at + offset))
        if error is not None:
            span.set_status(Status(StatusCode.ERROR))
        span.end(_nanoseconds(ended + offset))


def open_tracing(args: ServeArgs, environment: Mapping[str, str] = os.environ) -> Tracing | None:
    """Traces to where the option or the environment says; None where neither does.

    Raises :class:`UsageError` where ``--otlp-traces-endpoint`` is given without the extra that it needs.
    """
    endpoint = args.otlp_traces_endpoint
    is_asked_for = endpoint is not None or any(environment.get(name) for name in ENDPOINT_VARIABLES)
    if not is_asked_for or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        if endpoint is None:
            logger.warning("no traces: the environment asks for them, and %s is missing", error.name)
            return None
        raise UsageError(
            f"otlp_traces_endpoint (--otlp-traces-endpoint) needs {error.name}: pip install 'triolet[otel]'",
            param="otlp_traces_endpoint",
        ) from None
    name = environment.get("OTEL_SERVICE_NAME", "triolet")
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: name}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=_full_url(endpoint))))
    return Tracing(provider)


def _full_url(endpoint: str | None) -> str | None:
    """With the path that the protocol has for traces, where there is none."""
    if endpoint is None or urlsplit(endpoint).path not in ("", "/"):
        return endpoint
    return f"{endpoint.rstrip('/')}/v1/traces"


def _parent(scope: Scope) -> Context:
    """What the client's ``traceparent`` says; a trace of its own where there is none, or no valid one."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    return TraceContextTextMapPropagator().extract(carrier, Context())


def _attributes(
    scope: Scope, found: RequestScope, generation: Generation, status: int | None, ended: float
) -> Iterator[tuple[str, Any]]:
    """In the names of OpenTelemetry's conventions for generative AI; times as vLLM names them."""
    usage = generation.usage
    yield "gen_ai.operation.name", "text_completion" if scope["path"].endswith("/v1/completions") else "chat"
    yield "gen_ai.provider.name", "triolet"
    yield "gen_ai.request.model", found.model
    yield "gen_ai.response.model", found.model
    yield "gen_ai.response.id", found.answer_id or ""
    yield "gen_ai.response.finish_reasons", generation.finish_reasons
    yield "gen_ai.usage.input_tokens", usage.prompt_tokens
    yield "gen_ai.usage.output_tokens", usage.completion_tokens
    yield "gen_ai.usage.cache_read.input_tokens", usage.cached_tokens
    yield from _request_attributes(generation.params)
    yield "http.request.method", scope["method"]
    yield "url.path", scope["path"]
    if status is not None:
        yield "http.response.status_code", status
    if found.request_id is not None:
        yield "triolet.request_id", found.request_id
    yield from _latencies(generation.timings, ended)


def _request_attributes(params: SamplingParams | BeamSearchParams | None) -> Iterator[tuple[str, Any]]:
    if params is not None and params.max_tokens is not None:
        yield "gen_ai.request.max_tokens", params.max_tokens
    if isinstance(params, SamplingParams):
        yield "gen_ai.request.choice.count", params.n
        for name in ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty"):
            yield f"gen_ai.request.{name}", getattr(params, name)
        if params.seed is not None:
            yield "gen_ai.request.seed", params.seed


def _error_type(
    found: RequestScope, generation: Generation, status: int | None, *, is_shutdown: bool
) -> str | None:
    if generation.failure is not None:
        return type(generation.failure).__name__
    if not generation.is_finished and not found.is_background:
        return "shutdown" if is_shutdown else "client_disconnected"
    return str(status) if status is not None and status >= 500 else None


def _latencies(timings: RequestTimings, ended: float) -> Iterator[tuple[str, float]]:
    """Seconds. Of a request that ended early those there are."""
    arrived, started, first, last = (
        timings.arrived, timings.started, timings.first_token, timings.last_token
    )  # fmt: skip
    yield "gen_ai.latency.e2e", ended - arrived
    if first is None or last is None:
        return
    yield "gen_ai.latency.time_to_first_token", first - arrived
    yield "gen_ai.latency.time_in_model_decode", last - first
    if started is not None:
        yield "gen_ai.latency.time_in_queue", started - arrived
        yield "gen_ai.latency.time_in_model_prefill", first - started


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
