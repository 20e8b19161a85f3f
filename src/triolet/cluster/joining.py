"""Links between processes that may not trust each other yet: dialling one, and accepting them.

Before the handshake has succeeded a peer can send one short frame at a time and has a few seconds; the
number of such connections is bounded, and the oldest gives way to a new one.

This module knows neither which process dials which nor what they say afterwards.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
from anyio.abc import ByteStream

from triolet.cluster.frames import MAX_FRAME_SIZE, FrameReader, WireError, encode_frame
from triolet.cluster.handshake import (
    MAX_HANDSHAKE_FRAME,
    NONCE_SIZE,
    DialerHandshake,
    HandshakeError,
    ListenerHandshake,
    Peer,
    WrongSecretError,
    WrongVersionError,
)
from triolet.cluster.link import BROKEN, Link, LinkClosedError
from triolet.cluster.transport import Address, Listener, Transport
from triolet.errors import JoinError

__all__ = ["Credentials", "dial", "serve_links"]

HANDSHAKE_TIMEOUT = 5.0
FLUSH_TIMEOUT = 1.0
"""For what is still to be sent when the handler of a link is done."""
MAX_HALF_OPEN = 64
REFUSAL_INTERVAL = 10.0
"""Seconds between two lines about strangers at one address, of which there may be very many."""
MIN_RETRY_DELAY = 0.05
MAX_RETRY_DELAY = 1.0
PROGRESS_INTERVAL = 5.0

_FAILURES = (anyio.EndOfStream, WireError, *BROKEN)

_logger = logging.getLogger("triolet.cluster.joining")


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """What a process proves itself by: the launch's secret, and where nonces come from (``os.urandom``)."""

    secret: bytes
    random_bytes: Callable[[int], bytes]


async def dial(
    transport: Transport,
    address: Address,
    peer: Peer,
    credentials: Credentials,
    *,
    timeout: float,
    liveness_timeout: float | None = None,
    on_wait: Callable[[str], None] = _logger.info,
) -> Link:
    """A link to whoever listens at the address, to which we are ``peer``; its ``run`` is the caller's to run.

    Tries again while nobody answers, telling ``on_wait`` every few seconds, for ``timeout`` seconds. Raises
    JoinError then, and at once where the other side has another secret or version.
    """
    deadline = anyio.current_time() + timeout
    next_line, delay = anyio.current_time(), MIN_RETRY_DELAY
    while True:
        try:
            return await _dial_once(transport, address, peer, credentials, liveness_timeout)
        except (WrongSecretError, WrongVersionError) as error:
            raise JoinError(f"cannot join {address}: {error}") from None
        except _FAILURES as error:
            missing = _what_is_missing(error)
        now = anyio.current_time()
        if now + delay > deadline:
            raise JoinError(f"cannot join {address} within {timeout:g} s: {missing}")
        if now >= next_line:
            on_wait(f"waiting for {address}: {missing}")
            next_line = now + PROGRESS_INTERVAL
        await anyio.sleep(delay)
        delay = min(2 * delay, MAX_RETRY_DELAY)


def _what_is_missing(error: Exception) -> str:
    cause = error.__cause__ or error
    if isinstance(cause, ExceptionGroup):  # one for each number that a name stands for
        cause = cause.exceptions[0]
    if isinstance(cause, ConnectionRefusedError):
        return "nobody listens there"
    if isinstance(error, TimeoutError):
        return "no answer from there"
    if isinstance(error, anyio.EndOfStream | anyio.BrokenResourceError | anyio.ClosedResourceError):
        return "the connection is closed by the other side"
    return str(cause) or type(cause).__name__


async def _dial_once(
    transport: Transport,
    address: Address,
    peer: Peer,
    credentials: Credentials,
    liveness_timeout: float | None,
) -> Link:
    handshake = DialerHandshake(credentials.secret, peer, credentials.random_bytes(NONCE_SIZE))
    reader = FrameReader(MAX_HANDSHAKE_FRAME)
    with anyio.fail_after(HANDSHAKE_TIMEOUT):
        stream = await transport.connect(address)
        try:
            await stream.send(encode_frame(handshake.hello))
            await stream.send(encode_frame(handshake.answer(await _read_payload(stream, reader))))
            handshake.finish(await _read_payload(stream, reader))
        except BaseException:
            await anyio.aclose_forcefully(stream)
            raise
    return _joined(stream, str(address), reader, liveness_timeout)


async def serve_links(
    listener: Listener,
    handle: Callable[[Peer, Link], Awaitable[None]],
    credentials: Credentials,
    *,
    liveness_timeout: float | None = None,
) -> None:
    """Accept links for ever; ``handle`` has each, running, in a task of its own, and it is closed afterwards.

    ``handle`` may let LinkClosedError through. Cancellation: all links are closed.
    """
    await _Reception(listener, handle, credentials, liveness_timeout).run()


@dataclass(frozen=True, slots=True)
class _Reception:
    listener: Listener
    handle: Callable[[Peer, Link], Awaitable[None]]
    credentials: Credentials
    liveness_timeout: float | None
    half_open: dict[anyio.CancelScope, None] = field(default_factory=dict)
    last_told: dict[int, float] = field(default_factory=dict)
    untold: Counter[int] = field(default_factory=Counter)

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            while True:
                try:
                    stream = await self.listener.accept()
                except OSError as error:
                    _logger.warning("%s: no connection accepted: %s", self.listener.address, error)
                    if not isinstance(error, PermissionError):  # no more files, which takes a while to pass
                        await anyio.sleep(MIN_RETRY_DELAY)
                    continue
                if len(self.half_open) >= MAX_HALF_OPEN:
                    next(iter(self.half_open)).cancel()
                scope = anyio.CancelScope(deadline=anyio.current_time() + HANDSHAKE_TIMEOUT)
                self.half_open[scope] = None
                tasks.start_soon(self._serve, stream, scope)

    async def _serve(self, stream: ByteStream, scope: anyio.CancelScope) -> None:
        try:
            joined = await self._admit(stream, scope)
            if joined is None:
                return
            peer, link = joined
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(link.run)
                try:
                    await self.handle(peer, link)
                    with anyio.move_on_after(FLUSH_TIMEOUT):
                        await link.flush()
                except LinkClosedError as error:
                    _logger.info("%s", error)
                link.close("closed by this side")
        finally:
            await anyio.aclose_forcefully(stream)

    async def _admit(self, stream: ByteStream, scope: anyio.CancelScope) -> tuple[Peer, Link] | None:
        """Who dialled, and the link; None if it did not prove itself in time."""
        try:
            with scope:
                peer, reader = await _accept(stream, self.credentials)
                name = f"{peer.role.name.lower()} {peer.index}"
                return peer, _joined(stream, name, reader, self.liveness_timeout)
            self._tell(logging.INFO, "closed, as no handshake came")
        except (WrongSecretError, WrongVersionError) as error:
            self._tell(logging.WARNING, f"refused: {error}")
        except _FAILURES as error:
            self._tell(logging.INFO, f"refused: {_what_is_missing(error)}")
        finally:
            del self.half_open[scope]
        return None

    def _tell(self, level: int, what: str) -> None:
        """Say what became of a connection, unless as much was said a moment ago."""
        now = anyio.current_time()
        if now - self.last_told.get(level, -math.inf) < REFUSAL_INTERVAL:
            self.untold[level] += 1
            return
        self.last_told[level] = now
        num_others = self.untold.pop(level, 0)
        others = f"; {num_others} others meanwhile" if num_others else ""
        _logger.log(level, "%s: a connection %s%s", self.listener.address, what, others)


async def _accept(stream: ByteStream, credentials: Credentials) -> tuple[Peer, FrameReader]:
    handshake = ListenerHandshake(credentials.secret, credentials.random_bytes(NONCE_SIZE))
    reader = FrameReader(MAX_HANDSHAKE_FRAME)
    try:
        await stream.send(encode_frame(handshake.challenge(await _read_payload(stream, reader))))
        accept = handshake.accept(await _read_payload(stream, reader))
    except HandshakeError as error:
        if error.reply is not None:
            await stream.send(encode_frame(error.reply))
        raise
    await stream.send(encode_frame(accept))
    assert handshake.peer is not None
    return handshake.peer, reader


async def _read_payload(stream: ByteStream, reader: FrameReader) -> bytes:
    payload = reader.feed_one(b"")
    while payload is None:
        payload = reader.feed_one(await stream.receive(MAX_HANDSHAKE_FRAME))
    return payload


def _joined(stream: ByteStream, name: str, reader: FrameReader, liveness_timeout: float | None) -> Link:
    reader.max_size = MAX_FRAME_SIZE
    return Link(stream, name=name, liveness_timeout=liveness_timeout, reader=reader)
