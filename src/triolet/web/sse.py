"""Server-sent events: a generation as a stream that always has an end, and the chunks of OpenAI's streams.

The parts of a chunk that never change are encoded once. Knows the frame of a chunk, not the choices in it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, Callable, Sequence
from typing import Any, Protocol

import anyio
import msgspec
from quart import Response

from triolet.core.loop import loop_clock
from triolet.errors import EngineGenerateError, TrioletError
from triolet.web.errors import error_body
from triolet.web.generation import Delta, Generation, PromptProgress, Usage

__all__ = ["PING", "ChunkFrame", "EventStream", "StreamShape", "event_stream_response", "stream_response"]

logger = logging.getLogger("triolet.web")

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"


class ChunkFrame:
    """The constant part of each chunk: ``id``, ``object``, ``created``, ``model``; ``usage`` where asked for.

    With usage asked for, chunks with choices carry ``"usage": null``, and one without choices comes last.
    With ``usage_so_far`` they carry that instead.
    """

    def __init__(
        self,
        head: dict[str, Any],
        *,
        is_usage_included: bool,
        usage_so_far: Callable[[], Usage] | None = None,
    ) -> None:
        self._is_usage_included = is_usage_included
        self._usage_so_far = usage_so_far
        self._head = b"data: " + msgspec.json.encode(head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if is_usage_included else b"]}\n\n"

    def chunk(self, choice: bytes) -> bytes:
        if self._usage_so_far is not None:
            return self._with_usage(choice, self._usage_so_far())
        return self._head + choice + self._tail

    def closing(self, usage: Usage) -> bytes:
        """What comes after the last choice."""
        if not self._is_usage_included:
            return DONE
        return self._with_usage(b"", usage) + DONE

    def progress(self, choice: bytes, progress: PromptProgress) -> bytes:
        """What comes while the prompt is computed, in the names that llama-server has for it."""
        told = {
            "total": progress.num_tokens,
            "cache": progress.num_cached_tokens,
            "processed": progress.num_computed_tokens,
            "time_ms": round(1000 * progress.seconds),
        }
        chunk = self.chunk(choice).rstrip()
        return chunk[:-1] + b',"prompt_progress":' + msgspec.json.encode(told) + b"}\n\n"

    def failure(self, error: TrioletError) -> bytes:
        """What comes instead of the rest."""
        return b"data: " + msgspec.json.encode(error_body(error)) + b"\n\n" + DONE

    def _with_usage(self, choice: bytes, usage: Usage) -> bytes:
        return self._head + choice + b'],"usage":' + msgspec.json.encode(usage.as_mapping()) + b"}\n\n"


class StreamShape(Protocol):
    """How one kind of answer is streamed."""

    def opening(self) -> bytes:
        """What comes before any delta."""

    def chunks(self, delta: Delta) -> bytes:
        """The events of one delta, possibly none."""

    def closing(self, usage: Usage) -> bytes:
        """What comes after the last delta."""

    def failure(self, error: TrioletError) -> bytes:
        """What comes instead of the rest."""


class EventStream:
    """The body of a streamed answer, an asynchronous iterator of bytes. Leaving it aborts the generation.

    ``ping_interval`` seconds after the last bytes there is a ping, whatever the engine does: outputs may hold
    nothing to tell yet, as while a call is read. ``tell_progress`` writes how far the prompts are.

    ``is_ended``: there is nothing behind what it gave last.

    A class and no generator: the code after a ``yield`` does not run when an iterator is dropped unstarted.
    """

    def __init__(
        self,
        generation: Generation,
        shape: StreamShape,
        first: Sequence[Delta],
        *,
        ping_interval: float,
        tell_progress: Callable[[PromptProgress], bytes] | None = None,
    ) -> None:
        self._generation = generation
        self._shape = shape
        self._tell_progress = tell_progress
        self._num_computed_tokens = 0
        self._ping_interval = ping_interval
        self.is_ended = False
        self._clock = loop_clock()
        self._ping_at = self._clock() + ping_interval
        self._ready: bytes | None = shape.opening() + (self._encode(first) or PING)

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> bytes:
        if self._ready is not None:
            ready, self._ready = self._ready, None
            return ready
        if self.is_ended:
            raise StopAsyncIteration
        try:
            while not (events := self._encode(await self._generation.next(self._ping_at))):
                if self._clock() >= self._ping_at:
                    events = PING
                    break
        except Exception as error:
            self._generation.abort()
            return self._end_with(error)
        except BaseException:
            self._generation.abort()
            raise
        self._ping_at = self._clock() + self._ping_interval
        return events

    async def aclose(self) -> None:
        self.is_ended = True
        self._generation.abort()

    def _encode(self, deltas: Sequence[Delta]) -> bytes:
        chunks = self._shape.chunks
        events = chunks(deltas[0]) if len(deltas) == 1 else b"".join(map(chunks, deltas))
        if self._tell_progress is not None:
            events = self._news_of_prompts(self._tell_progress) + events
        if not self._generation.is_finished:
            return events
        self.is_ended = True
        return events + self._shape.closing(self._generation.usage)

    def _news_of_prompts(self, tell: Callable[[PromptProgress], bytes]) -> bytes:
        progress = self._generation.prompt_progress
        if progress.num_computed_tokens == self._num_computed_tokens:
            return b""
        self._num_computed_tokens = progress.num_computed_tokens
        return tell(progress)

    def _end_with(self, error: Exception) -> bytes:
        self.is_ended = True
        if not isinstance(error, TrioletError):
            logger.error("unexpected error while streaming an answer", exc_info=error)
            error = EngineGenerateError("Internal server error; its cause is in the server's log.")
        return self._shape.failure(error)


async def event_stream_response(
    generation: Generation,
    shape: StreamShape,
    *,
    ping_interval: float,
    tell_progress: Callable[[PromptProgress], bytes] | None = None,
) -> Response:
    """Start a streamed answer once the first output is there, so that an early error keeps its status.

    After ``ping_interval`` seconds without one it is started all the same, and an error becomes an event.
    """
    try:
        first = await generation.next(anyio.current_time() + ping_interval)
        body = EventStream(generation, shape, first, ping_interval=ping_interval, tell_progress=tell_progress)
    except BaseException:
        generation.abort()
        raise
    return stream_response(body)


def stream_response(body: AsyncIterable[bytes]) -> Response:
    """A response that is sent as its body comes."""
    response = Response(body, content_type="text/event-stream; charset=utf-8")
    response.headers["Cache-Control"] = "no-cache"
    response.headers["X-Accel-Buffering"] = "no"
    # The framework's time-out would cut a long stream without a word.
    response.timeout = None
    return response
