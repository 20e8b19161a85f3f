"""Bytes that a hostile peer might send, tried on everything that reads from the wire.

    python -m tests.fuzz.wire --iterations 1000000

Real messages are mutated: bytes changed, inserted, cut, doubled, announcements of length made absurd, two
messages spliced; or values replaced, doubled and left out. Each is tried as a message, as a stream in pieces,
and as a step of a handshake.
"""

from __future__ import annotations

import argparse
import random
import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tests.triolet.cluster.example_messages import EXAMPLES

from triolet.cluster.frames import FrameReader, WireError, encode_frame
from triolet.cluster.handshake import DialerHandshake, HandshakeError, ListenerHandshake, Peer, Role
from triolet.cluster.messages import decode_message, encode_message
from triolet.cluster.packing import pack, unpack

__all__ = ["fuzz", "main"]

INTERESTING = (
    b"\xc0", b"\xc1", b"\xc3", b"\xc4\xff", b"\xc6\xff\xff\xff\xff", b"\xc7\x00\x01", b"\xca\x7f\xc0\x00\x00",
    b"\xcb\xff\xf0\x00\x00\x00\x00\x00\x00", b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", b"\xd3\x80" + bytes(7),
    b"\xd6\xff\x00\x00\x00\x00", b"\xd9\xff", b"\xdb\xff\xff\xff\xff", b"\xdc\x0f\xff",
    b"\xdd\xff\xff\xff\xff", b"\xde\xff\xff", b"\xdf\xff\xff\xff\xff", b"\x80", b"\x90", b"\x91", b"\xa0",
    b"\xff", b"\x00",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 2**63, 2**64 - 1, 0.5, float("nan"), float("inf"), "", "x", "stop", b"", b"1234567",
    bytes(8), (), (None,), (0,), (1, (2,)), {}, {"a": ()}, ((((((((((),),),),),),),),),),
)  # fmt: skip
MAX_FRAME = 1 << 16
SECRET = b"a secret"
NONCE = b"n" * 32


def mutate(source: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """The data after one to four changes."""
    for _ in range(source.randint(1, 4)):
        start = source.randint(0, len(data))
        end = min(len(data), start + source.randint(0, 8))
        kind = source.randrange(6)
        if kind == 0:
            data = data[:start] + source.choice(INTERESTING) + data[end:]
        elif kind == 1:
            data = data[:start] + source.randbytes(end - start) + data[end:]
        elif kind == 2:
            data = data[:start] + data[end:]
        elif kind == 3:
            data = data[:start] + data[start:end] * source.randint(2, 50) + data[end:]
        elif kind == 4:
            data = data[:start]
        else:
            other = source.choice(others)
            data = data[:start] + other[source.randint(0, len(other)) :]
    return data


def mutate_values(source: random.Random, value: Any) -> Any:
    """Plain values with one of them replaced, doubled or left out, at any depth."""
    if not isinstance(value, tuple) or not value or source.random() < 0.2:
        return source.choice(VALUES)
    place = source.randrange(len(value))
    kind = source.randrange(8)
    if kind == 0:
        return value[:place]
    if kind == 1:
        return value[:place] + 2 * value[place : place + 1] + value[place + 1 :]
    return (*value[:place], mutate_values(source, value[place]), *value[place + 1 :])


def try_message(source: random.Random, payload: bytes) -> str:
    """A message that is taken must be one that can be sent again."""
    try:
        message = decode_message(payload)
    except WireError:
        return "message refused"
    assert repr(decode_message(encode_message(message))) == repr(message)
    return "message taken"


def try_values(source: random.Random, payload: bytes) -> str:
    """As before, but with what is well-formed."""
    return try_message(source, pack(mutate_values(source, unpack(payload))))


def try_stream(source: random.Random, stream: bytes) -> str:
    """However the stream is cut, the reader holds no more than one frame."""
    reader = FrameReader(MAX_FRAME)
    while stream:
        size = source.randint(1, len(stream))
        try:
            reader.feed(stream[:size])
        except WireError:
            return "stream refused"
        assert len(reader._buffer) <= MAX_FRAME + 4
        stream = stream[size:]
    return "stream taken"


def try_handshake(source: random.Random, payload: bytes) -> str:
    """No payload but the right one ends a handshake."""
    dialer, listener = DialerHandshake(SECRET, Peer(Role.ENGINE, 1), NONCE), ListenerHandshake(SECRET, NONCE)
    listener.challenge(dialer.hello)
    takers: list[Callable[[bytes], object]] = [
        dialer.answer, dialer.finish, ListenerHandshake(SECRET, NONCE).challenge, listener.accept,
    ]  # fmt: skip
    for take in takers:
        try:
            take(payload)
        except HandshakeError:
            continue
        assert take in (takers[0], takers[2]), "a secret was guessed"
        return "handshake begun"
    return "handshake refused"


def fuzz(num_iterations: int, seed: int) -> Counter[str]:
    """How often what came of it. Raises whatever but the wire's own errors comes out."""
    source = random.Random(seed)
    payloads = [payload for payload in map(encode_message, EXAMPLES) if len(payload) < 4096]
    dialer, listener = (
        DialerHandshake(b"other", Peer(Role.NODE, 0), NONCE),
        ListenerHandshake(b"other", NONCE),
    )
    challenge = listener.challenge(dialer.hello)
    steps = [dialer.hello, challenge, proof := dialer.answer(challenge), listener.accept(proof)]
    streams = [b"".join(map(encode_frame, payloads[start : start + 4])) for start in range(len(payloads))]
    outcomes: Counter[str] = Counter()
    for _ in range(num_iterations):
        attempt, examples = source.choices(
            [(try_message, payloads), (try_values, payloads), (try_stream, streams), (try_handshake, steps)],
            weights=[4, 4, 1, 1],
        )[0]
        data = source.choice(examples)
        if attempt is not try_values:
            data = mutate(source, data, examples)
        try:
            outcomes[attempt(source, data)] += 1
        except Exception as error:
            error.add_note(f"{attempt.__name__}: {data.hex()}")
            raise
    return outcomes


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--iterations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    outcomes = fuzz(options.iterations, options.seed)
    seconds = time.perf_counter() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:>10}  {outcome}")
    print(f"{options.iterations / seconds:.0f} a second; memory grew by at most {grown:.0f} MiB")


if __name__ == "__main__":
    main()
