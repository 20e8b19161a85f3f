"""Keeps Hypercorn reading while it answers, so that it hears of a client that leaves.

As it is, the first byte behind a request (one sent ahead, or a stray line end) stops all reading until the
answer is out: a client that leaves meanwhile is not noticed, and its connection may stay for good. Here such
bytes wait in a bounded buffer. It overrides private methods, so it is tied to the versions it was tested
with.
"""

from __future__ import annotations

from typing import Any

import anyio
import h11
import hypercorn.protocol
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.h11 import H11Protocol

__all__ = ["MAX_EARLY_BYTES", "install_early_reading"]

MAX_EARLY_BYTES = 64 * 1024
"""What a client may send ahead of its answer; one that sends more is disconnected."""


class _NeverPausedConnection(h11.Connection):
    """Asks for more data where it would ask to be left alone until the answer is out.

    Empty lines before a request are skipped, as RFC 9112, section 2.2 has it.
    """

    def next_event(self) -> Any:
        while self.their_state is h11.IDLE and self.trailing_data[0].startswith(b"\r\n"):
            self._receive_buffer.maybe_extract_at_most(2)
        event = super().next_event()
        return h11.NEED_DATA if event is h11.PAUSED else event


class _ReadingProtocol(H11Protocol):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.connection = _NeverPausedConnection(
            h11.SERVER, max_incomplete_event_size=self.config.h11_max_incomplete_size
        )
        # The reader and the end of an answer both take events; their order must not be mixed up.
        self._taking_events = anyio.Lock()

    async def handle(self, event: Event) -> None:
        if not isinstance(event, RawData):
            await super().handle(event)
        elif self._is_answering and len(self.connection.trailing_data[0]) > MAX_EARLY_BYTES:
            await self.send(Closed())
        else:
            async with self._taking_events:
                await super().handle(event)

    async def _maybe_recycle(self) -> None:
        await super()._maybe_recycle()
        if self.connection.our_state is h11.IDLE and self.connection.trailing_data[0]:
            async with self._taking_events:
                await self._handle_events()

    @property
    def _is_answering(self) -> bool:
        return self.connection.their_state is h11.DONE


def install_early_reading() -> None:
    """Use it for the connections of this process from here on."""
    hypercorn.protocol.H11Protocol = _ReadingProtocol  # type: ignore[attr-defined]
