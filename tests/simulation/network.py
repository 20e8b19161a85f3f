"""A network that is all in memory: hosts, connections between processes on them, and what goes wrong there.

What is sent arrives after a time that is drawn for it, in order within a connection, in any order between
two. The way from one host to another can be slow, or blocked: then what is sent waits, as TCP sends it again
and again, until the way is free or the connection is given up. A connection can be cut: both ends see it
broken at once. A process that ends closes its ends, of which the others hear if the way is free.

This module knows nothing of what is said over a connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream

from triolet.cluster.transport import Address, Listener

__all__ = ["GIVE_UP_SECONDS", "SENT", "Endpoint", "Network", "VirtualStream", "VirtualTransport", "Way"]

LOCAL_DELAY = (0.000_02, 0.000_2)
CAPACITY = 1 << 18
GIVE_UP_SECONDS = 10.0
"""How long what was sent on a blocked way is sent again: TCP_USER_TIMEOUT of the real transport."""
SHORT_READS = 0.05
"""The share of reads that give only a part of what is there."""
SENT = "sent"
"""The kind of event that there is one of for everything sent."""
ANY_HOST = frozenset({"0.0.0.0", "::", "127.0.0.1", "localhost"})
FIRST_FREE_PORT = 40_000

Trace = Callable[..., None]


class Endpoint(Protocol):
    """A process as the network sees it. ``connections`` are its ends, in the order of their birth."""

    name: str
    host: str
    connections: dict[VirtualStream | VirtualListener, None]


@dataclass(slots=True)
class Way:
    """From one host to another. ``delay``: the least and the most that something is under way, in seconds."""

    delay: tuple[float, float]
    is_blocked: bool = False
    freed: anyio.Event = field(default_factory=anyio.Event)


class VirtualStream(ByteStream):
    """One end of a connection, of the process ``owner``. ``arriving`` is what is under way to it."""

    def __init__(self, network: Network, owner: Endpoint) -> None:
        self.owner = owner
        self.peer: VirtualStream
        self._network = network
        self._arriving: deque[tuple[float, bytes]] = deque()
        self._num_arriving = 0
        self._last_due = 0.0
        self._ends_at: float | None = None
        self._problem: str | None = None
        self._changed = anyio.Event()
        self._has_room = anyio.Event()
        self.held: list[bytes | None] = []
        """What waits at the peer for the way to be free; None is the end of the stream."""
        owner.connections[self] = None

    # ------------------------------------------------------------------ what the owner does

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await anyio.lowlevel.checkpoint()
        while True:
            self._check()
            now = anyio.current_time()
            if self._arriving and self._arriving[0][0] <= now:
                return self._take(max_bytes, now)
            if not self._arriving and self._ends_at is not None and self._ends_at <= now:
                raise anyio.EndOfStream
            due = self._arriving[0][0] if self._arriving else self._ends_at
            if due is None:
                await self._changed.wait()
            else:
                with anyio.move_on_after(due - now):
                    await self._changed.wait()

    def _take(self, max_bytes: int, now: float) -> bytes:
        chunks: list[bytes] = []
        size = 0
        while self._arriving and self._arriving[0][0] <= now and size < max_bytes:
            chunks.append(self._arriving.popleft()[1])
            size += len(chunks[-1])
        data = b"".join(chunks)
        if self._network.random.random() < SHORT_READS:
            max_bytes = min(max_bytes, self._network.random.randint(1, len(data)))
        if len(data) > max_bytes:
            self._arriving.appendleft((now, data[max_bytes:]))
            data = data[:max_bytes]
        self._num_arriving -= len(data)
        self._has_room.set()
        return data

    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        self._check_reader()
        while self.peer._num_arriving > CAPACITY:
            self.peer._has_room = anyio.Event()
            await self.peer._has_room.wait()
            self._check_reader()
        self._network.convey(self, item)

    async def send_eof(self) -> None:
        self._network.convey(self, None)

    async def aclose(self) -> None:
        self.close()
        await anyio.lowlevel.checkpoint()

    def close(self) -> None:
        """The other end hears of it in its time."""
        if self._problem is None:
            self._network.convey(self, None)
        self.break_off("closed by its owner")

    def break_off(self, problem: str) -> None:
        """From here on nothing can be read or sent here."""
        if self._problem is None:
            self._problem = problem
            self.owner.connections.pop(self, None)
            self._note()

    def _check(self) -> None:
        if self._problem is not None:
            raise anyio.BrokenResourceError from ConnectionResetError(self._problem)

    def _check_reader(self) -> None:
        self._check()
        if self._ends_at is not None and self._ends_at <= anyio.current_time() and self.peer.is_broken:
            raise anyio.BrokenResourceError from BrokenPipeError("the other end is closed")

    @property
    def is_broken(self) -> bool:
        return self._problem is not None

    # ------------------------------------------------------------------ what the network does

    def arrive(self, due: float, item: bytes | None) -> None:
        """Something will be here at that time, or a little later: nothing overtakes within a connection."""
        due = self._last_due = max(due, self._last_due)
        if item is None:
            self._ends_at = due
        elif self._ends_at is None:
            self._arriving.append((due, item))
            self._num_arriving += len(item)
        self._note()

    def _note(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
        self._has_room.set()
        if self._problem is not None:
            self.peer._has_room.set()


class VirtualListener:
    """Where a process can be reached."""

    def __init__(self, network: Network, owner: Endpoint, address: Address, key: tuple[str, str]) -> None:
        self.address, self.owner = address, owner
        self._network, self._key = network, key
        self._waiting: deque[VirtualStream] = deque()
        self._changed = anyio.Event()
        owner.connections[self] = None

    async def accept(self) -> ByteStream:
        await anyio.lowlevel.checkpoint()
        while not self._waiting:
            await self._changed.wait()
        return self._waiting.popleft()

    def offer(self, stream: VirtualStream) -> None:
        self._waiting.append(stream)
        self._changed.set()
        self._changed = anyio.Event()

    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        """Nobody can reach it any more; who waits to be let in is turned away."""
        self._network.forget_listener(self._key)
        self.owner.connections.pop(self, None)
        for stream in self._waiting:
            stream.close()
        self._waiting.clear()


class Network:
    """All hosts. ``delay``: of what goes from one host to another, in seconds, the least and the most."""

    def __init__(self, random: Random, delay: tuple[float, float], trace: Trace) -> None:
        self.random = random
        self.trace = trace
        self._delay = delay
        self._ways: dict[tuple[str, str], Way] = {}
        self._listeners: dict[tuple[str, str], VirtualListener] = {}
        self._streams: dict[VirtualStream, None] = {}
        self._num_ports = 0

    def way(self, source: str, target: str) -> Way:
        if (source, target) not in self._ways:
            delay = LOCAL_DELAY if source == target else self._delay
            self._ways[source, target] = Way(delay)
        return self._ways[source, target]

    def pair(self, one: Endpoint, other: Endpoint) -> tuple[VirtualStream, VirtualStream]:
        """The two ends of a new connection."""
        streams = VirtualStream(self, one), VirtualStream(self, other)
        streams[0].peer, streams[1].peer = streams[1], streams[0]
        if one.host != other.host:
            self._streams.update(dict.fromkeys(streams))
        return streams

    def convey(self, stream: VirtualStream, item: bytes | None) -> None:
        """Take what an end sends to the other; None for the end of the stream."""
        way = self.way(stream.owner.host, stream.peer.owner.host)
        self.trace(SENT, stream.owner.name, stream.peer.owner.name, None if item is None else len(item))
        if way.is_blocked:
            stream.peer.held.append(item)
        else:
            stream.peer.arrive(anyio.current_time() + self.random.uniform(*way.delay), item)

    # ------------------------------------------------------------------ what goes wrong

    def block(self, source: str, target: str) -> None:
        """Nothing gets through from one host to the other, until :meth:`free`."""
        way = self.way(source, target)
        way.is_blocked, way.freed = True, anyio.Event()

    def free(self, source: str, target: str) -> None:
        way = self.way(source, target)
        if not way.is_blocked:
            return
        way.is_blocked = False
        way.freed.set()
        for stream in list(self._streams):
            if (stream.peer.owner.host, stream.owner.host) == (source, target):
                held, stream.held = stream.held, []
                for item in held:
                    self.convey(stream.peer, item)

    def give_up(self, source: str, target: str) -> None:
        """Whoever still waits for what it sent there to be acknowledged finds its connection broken."""
        if self.way(source, target).is_blocked:
            for stream in self._crossing(source, target):
                if stream.peer.held:
                    stream.break_off("timed out")

    def cut(self, source: str, target: str) -> None:
        """All connections between the two hosts break, at both ends."""
        for stream in self._crossing(source, target) + self._crossing(target, source):
            stream.break_off("connection reset by peer")

    def _crossing(self, source: str, target: str) -> list[VirtualStream]:
        self._streams = {
            stream: None for stream in self._streams if {stream, stream.peer} & self._open_ends(stream)
        }
        return [
            stream
            for stream in self._streams
            if (stream.owner.host, stream.peer.owner.host) == (source, target)
        ]

    @staticmethod
    def _open_ends(stream: VirtualStream) -> set[VirtualStream]:
        return {end for end in (stream, stream.peer) if end in end.owner.connections}

    # ------------------------------------------------------------------ listeners

    def listen(self, owner: Endpoint, address: Address) -> VirtualListener:
        if address.host is not None and address.port == 0:
            self._num_ports += 1
            address = Address(address.host, FIRST_FREE_PORT + self._num_ports)
        key = _key(owner.host, address)
        if key in self._listeners:
            raise OSError(f"{address} is taken on {owner.host}")
        listener = self._listeners[key] = VirtualListener(self, owner, address, key)
        return listener

    def forget_listener(self, key: tuple[str, str]) -> None:
        self._listeners.pop(key, None)

    async def connect(self, owner: Endpoint, address: Address) -> VirtualStream:
        await anyio.lowlevel.checkpoint()
        key = _key(owner.host, address)
        ways = self.way(owner.host, key[0]), self.way(key[0], owner.host)
        while (blocked := next((way for way in ways if way.is_blocked), None)) is not None:
            await blocked.freed.wait()
        await anyio.sleep(sum(self.random.uniform(*way.delay) for way in ways))
        listener = self._listeners.get(key)
        if listener is None:
            raise ConnectionRefusedError(111, "Connection refused")
        ours, theirs = self.pair(owner, listener.owner)
        listener.offer(theirs)
        self.trace("connected", owner.name, str(address))
        return ours

    @property
    def open_connections(self) -> list[str]:
        """What is left of connections between hosts that somebody still holds."""
        ends = [end for stream in self._streams for end in self._open_ends(stream)]
        return sorted({f"{end.owner.name} to {end.peer.owner.name}" for end in ends})

    @property
    def listeners(self) -> list[str]:
        return [str(listener.address) for listener in self._listeners.values()]


def _key(host: str, address: Address) -> tuple[str, str]:
    """Host and place on it that an address means to a process on ``host``."""
    if address.host is None:
        return host, address.name
    return host if address.host in ANY_HOST else address.host, str(address.port)


class VirtualTransport:
    """The ``Transport`` of one process."""

    def __init__(self, network: Network, owner: Endpoint) -> None:
        self._network, self._owner = network, owner

    async def connect(self, address: Address) -> ByteStream:
        return await self._network.connect(self._owner, address)

    async def listen(self, address: Address) -> Listener:
        await anyio.lowlevel.checkpoint()
        return self._network.listen(self._owner, address)
