"""A link: messages over one connection, in order, until it is closed for a reason that both sides can tell.

What is posted waits in a buffer, from which :meth:`Link.run` writes as much as there is in one go; no caller
ever writes to the stream, so cancelling one cannot tear a frame. A side that has heard nothing for a while
asks with a Ping, which the other side's :meth:`Link.receive` answers by itself. One that gives up for lack of
an answer says so last: the other may have been stopped, or be heard no more though it still hears.

This module knows neither addresses nor what messages mean.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress

import anyio
from anyio.abc import ByteStream, SocketAttribute

from triolet.cluster.frames import FrameReader, WireError, encode_frame
from triolet.cluster.messages import Message, Ping, Pong, Unheard, decode_message, encode_message
from triolet.cluster.unix_stream import UnixStream

__all__ = ["Link", "LinkClosedError"]

CHUNK = 256 << 10
MAX_UNSENT = 64 << 20
UNREAD_SECONDS = 10.0
"""With more than that unsent, a side that takes nothing for as long counts as one that does not read."""
PIECE = 1 << 20
"""Bytes that are written at once, so that what is taken of very many is seen."""
NUM_TICKS = 5
"""A liveness time-out is so many ticks: one that a stalled loop has slept through counts once."""

FAREWELL_SECONDS = 0.5
"""For the last message, which a stream with room takes at once."""

CLOSED_THERE = "closed by the other side"
BROKEN = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)

_logger = logging.getLogger("triolet.cluster.link")


class LinkClosedError(WireError):
    """The link is closed; the message says why."""


class Link:
    """``name`` is what log lines call it. ``reader`` may hold what came behind a handshake.

    ``liveness_timeout``: seconds without a sign of life after which the link is closed; None: as long as the
    connection holds. One task at a time may receive.
    """

    def __init__(
        self,
        stream: ByteStream,
        *,
        name: str,
        liveness_timeout: float | None = None,
        reader: FrameReader | None = None,
    ) -> None:
        self.name = name
        self._stream = stream
        # Others may hold what they were given in a buffer of their own, which must not be overtaken.
        is_direct = isinstance(stream, UnixStream)
        self._socket = stream.extra(SocketAttribute.raw_socket) if is_direct else None
        self._liveness_timeout = liveness_timeout
        self._reader = reader or FrameReader()
        self._payloads = deque(self._reader.feed(b""))
        self._unsent: list[bytes] = []
        self._num_posted_bytes = 0
        self._num_written_bytes = 0
        self._num_written_when_full, self._full_since = -1, 0.0
        self._has_unsent = anyio.Event()
        self._has_written = anyio.Event()
        self._is_mute = self._is_amid_write = False
        self._farewell: Message | None = None
        self._num_silent_ticks = 0
        self._num_pings = 0
        self._receiving: anyio.CancelScope | None = None
        self._closed = anyio.Event()
        self._reason: str | None = None

    @property
    def closed_reason(self) -> str | None:
        """Why the link is closed; None while it is open."""
        return self._reason

    async def run(self) -> None:
        """Write what is posted and watch for silence; return, the connection closed, once the link is.

        Cancellation: the connection is closed at once.
        """
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write)
                if self._liveness_timeout is not None:
                    tasks.start_soon(self._watch, self._liveness_timeout)
                await self._closed.wait()
                tasks.cancel_scope.cancel()
        finally:
            self.close("closed by this side")
            with anyio.CancelScope(shield=True):
                await self._say_farewell()
            await anyio.aclose_forcefully(self._stream)

    def post(self, message: Message) -> None:
        """Send soon; never blocks. On a closed link it does nothing: :meth:`receive` tells of the loss.

        Raises WireError for a message that cannot be sent; the link goes on.
        """
        if self._is_mute:
            return
        frame = encode_frame(encode_message(message))
        self._num_posted_bytes += len(frame)
        if self._is_unread():
            self.close(f"the other side does not read: more than {MAX_UNSENT >> 20} MiB wait to be sent")
            return
        self._unsent.append(frame)
        self._has_unsent.set()

    def _is_unread(self) -> bool:
        """Whether too much is unsent, and nothing was written since that was seen, long ago."""
        if self._num_posted_bytes - self._num_written_bytes <= MAX_UNSENT:
            return False
        now = anyio.current_time()
        if self._num_written_bytes != self._num_written_when_full:
            self._num_written_when_full, self._full_since = self._num_written_bytes, now
        return now - self._full_since >= UNREAD_SECONDS

    async def send(self, message: Message) -> None:
        """Post, and return once it is written. Raises LinkClosedError, or WireError as :meth:`post` does.

        Cancellation: the message is sent all the same.
        """
        self.post(message)
        await self.flush()

    async def flush(self) -> None:
        """Return once all that was posted is written. Raises LinkClosedError."""
        end = self._num_posted_bytes
        while self._num_written_bytes < end and not self._is_mute:
            await self._has_written.wait()
        if self._is_mute:
            raise LinkClosedError(f"{self.name}: {self._reason or 'the connection broke'}")

    async def receive(self) -> Message:
        """The next message. Raises LinkClosedError, with the reason, once there is none to come.

        Cancellation: no message is lost.
        """
        while True:
            while self._payloads:
                message = self._take()
                if type(message) is Ping:
                    self.post(Pong(message.counter))
                elif type(message) is Unheard:
                    self.close(f"{CLOSED_THERE}, which heard nothing from here for {message.seconds:g} s")
                elif message is not None and type(message) is not Pong:
                    return message
            if self._reason is not None:
                raise LinkClosedError(f"{self.name}: {self._reason}")
            await self._read()

    def close(self, reason: str) -> None:
        """Close at once, whatever is unsent. The first reason given stays."""
        if self._reason is not None:
            return
        self._reason = reason
        self._payloads.clear()
        self._mute()
        self._closed.set()
        if self._receiving is not None:
            self._receiving.cancel()

    def _mute(self) -> None:
        """Nothing can be sent any more; what the other side sent before may still be read."""
        self._is_mute = True
        self._unsent.clear()
        self._has_written.set()

    def _take(self) -> Message | None:
        """The next message of those that have arrived; None, and the link closed, where it is none."""
        try:
            return decode_message(self._payloads.popleft())
        except WireError as error:
            self._refuse(error)
            return None

    def _refuse(self, error: WireError) -> None:
        _logger.warning("%s: closed, as it sent what is no message: %s", self.name, error)
        self.close(f"the other side sent what is no message: {error}")

    async def _read(self) -> None:
        """Wait for more from the stream, or for the link to be closed."""
        assert self._receiving is None, "one task at a time may receive"
        with anyio.CancelScope() as self._receiving:
            try:
                data = await self._stream.receive(CHUNK)
                self._num_silent_ticks = 0
                self._payloads.extend(self._reader.feed(data))
            except anyio.EndOfStream:
                self.close(CLOSED_THERE)
            except BROKEN as error:
                cause = error.__cause__ or error
                self.close(f"the connection broke: {str(cause) or type(cause).__name__}")
            except WireError as error:
                self._refuse(error)
            finally:
                self._receiving = None

    async def _write(self) -> None:
        while not self._is_mute:
            if not self._unsent:
                self._has_unsent = anyio.Event()
                await self._has_unsent.wait()
            data = b"".join(self._unsent)
            self._unsent.clear()
            try:
                await self._write_pieces(data)
            except BROKEN:
                self._mute()
                return

    async def _write_pieces(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE):
            piece = data[start : start + PIECE]
            self._is_amid_write = True
            num_taken = self._send_now(piece)
            if num_taken < len(piece):
                await self._stream.send(piece[num_taken:])
            self._is_amid_write = start + PIECE < len(data)
            self._num_written_bytes += len(piece)
            self._has_written.set()
            self._has_written = anyio.Event()

    def _send_now(self, piece: bytes) -> int:
        """How much of it the kernel takes at once, mostly all; the stream lets others run first."""
        if self._socket is None:
            return 0
        try:
            return self._socket.send(piece)
        except (BlockingIOError, InterruptedError):
            return 0

    async def _say_farewell(self) -> None:
        """The last message, if there is one, and no frame is torn that it would come in the midst of."""
        if self._farewell is not None and not self._is_amid_write:
            with anyio.move_on_after(FAREWELL_SECONDS), suppress(*BROKEN):
                await self._stream.send(encode_frame(encode_message(self._farewell)))

    async def _watch(self, timeout: float) -> None:
        """Ask when nothing was heard for a tick; close after as many as make up the time-out."""
        while True:
            await anyio.sleep(timeout / NUM_TICKS)
            if self._receiving is None:
                continue  # what has come is not looked at: that is our fault, not theirs
            self._num_silent_ticks += 1
            if self._num_silent_ticks >= NUM_TICKS:
                self._farewell = Unheard(timeout)
                self.close(f"silent for {timeout:g} s")
            elif self._num_silent_ticks > 1:
                self._num_pings += 1
                self.post(Ping(self._num_pings))
