"""How two processes prove to each other that they know the same secret, before anything else is read.

Four payloads of fixed layout, big-endian::

    dialer   → HELLO      magic  1  version  role  index  nonce
    listener → CHALLENGE  magic  2  version  nonce                or REFUSAL  magic  5  version  reason
    dialer   → PROOF      magic  3  version  HMAC-SHA256(secret, "dialer" + HELLO + CHALLENGE)
    listener → ACCEPT     magic  4  version  HMAC-SHA256(secret, "listener" + HELLO + CHALLENGE)   or REFUSAL

Either proof covers both nonces, the version, the role and the index, and says which side gave it, so none can
be used again, turned round or moved to another role. The listener proves nothing to a stranger. The secret is
never sent. What follows is neither encrypted nor signed.

Sans-IO: every method takes a payload and gives the one to send. This module knows no stream and no clock.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct, error
from typing import Any

from triolet.cluster.frames import WireError

__all__ = [
    "MAX_HANDSHAKE_FRAME",
    "NONCE_SIZE",
    "PROTOCOL_VERSION",
    "DialerHandshake",
    "HandshakeError",
    "ListenerHandshake",
    "Peer",
    "Role",
    "WrongSecretError",
    "WrongVersionError",
]

PROTOCOL_VERSION = 2
NONCE_SIZE = 32
MAX_HANDSHAKE_FRAME = 4096

_MAGIC = b"triolet\0"
_HEAD = Struct(">8sBH")  # magic, kind, version: the same in all versions
_HELLO = Struct(">8sBHBI32s")
_CHALLENGE = Struct(">8sBH32s")
_PROOF = Struct(">8sBH32s")
_REFUSAL = Struct(">8sBHB")
_KIND_HELLO, _KIND_CHALLENGE, _KIND_PROOF, _KIND_ACCEPT, _KIND_REFUSAL = range(1, 6)
_REASON_VERSION, _REASON_SECRET = 1, 2


class Role(IntEnum):
    """What the dialer is."""

    ENGINE = 1
    """An engine process, with its rank."""
    NODE = 2
    """A headless node."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Who dialled, proven. ``index``: of an engine, its rank."""

    role: Role
    index: int


class HandshakeError(WireError):
    """The two do not come together. ``reply`` is the payload to send before closing, if any."""

    def __init__(self, message: str, *, reply: bytes | None = None) -> None:
        super().__init__(message)
        self.reply = reply


class WrongSecretError(HandshakeError):
    """The other side was started with another secret."""


class WrongVersionError(HandshakeError):
    """The other side speaks another version of the protocol."""


class DialerHandshake:
    """The side that connected: send ``hello``, then what :meth:`answer` gives, then :meth:`finish`."""

    def __init__(self, secret: bytes, peer: Peer, nonce: bytes) -> None:
        assert secret
        assert len(nonce) == NONCE_SIZE
        self._secret = secret
        self._challenge = b""
        self.hello = _HELLO.pack(_MAGIC, _KIND_HELLO, PROTOCOL_VERSION, peer.role, peer.index, nonce)

    def answer(self, challenge: bytes) -> bytes:
        """The proof to send. Raises HandshakeError."""
        _check_not_refused(challenge)
        _unpack(_CHALLENGE, _KIND_CHALLENGE, challenge)
        self._challenge = challenge
        return _proof(_KIND_PROOF, self._mac(b"dialer"))

    def finish(self, accept: bytes) -> None:
        """Return if the listener has proven itself. Raises HandshakeError."""
        _check_not_refused(accept)
        (mac,) = _unpack(_PROOF, _KIND_ACCEPT, accept)
        if not hmac.compare_digest(mac, self._mac(b"listener")):
            raise WrongSecretError("the listener does not know the secret")

    def _mac(self, side: bytes) -> bytes:
        return hmac.digest(self._secret, side + self.hello + self._challenge, "sha256")


class ListenerHandshake:
    """The side that was connected to: send what :meth:`challenge` gives, then what :meth:`accept` gives."""

    def __init__(self, secret: bytes, nonce: bytes) -> None:
        assert secret
        assert len(nonce) == NONCE_SIZE
        self._secret = secret
        self._hello = b""
        self._challenge = _CHALLENGE.pack(_MAGIC, _KIND_CHALLENGE, PROTOCOL_VERSION, nonce)
        self.peer: Peer | None = None

    def challenge(self, hello: bytes) -> bytes:
        """The challenge to send. Raises HandshakeError."""
        role, index, _ = _unpack(_HELLO, _KIND_HELLO, hello)
        try:
            self._claim = Peer(Role(role), index)
        except ValueError:
            raise HandshakeError(f"role {role} is unknown") from None
        self._hello = hello
        return self._challenge

    def accept(self, proof: bytes) -> bytes:
        """Our own proof to send, now that the dialer is who it claims to be. Raises HandshakeError."""
        (mac,) = _unpack(_PROOF, _KIND_PROOF, proof)
        if not hmac.compare_digest(mac, self._mac(b"dialer")):
            raise WrongSecretError("the dialer does not know the secret", reply=_refusal(_REASON_SECRET))
        self.peer = self._claim
        return _proof(_KIND_ACCEPT, self._mac(b"listener"))

    def _mac(self, side: bytes) -> bytes:
        return hmac.digest(self._secret, side + self._hello + self._challenge, "sha256")


def _proof(kind: int, mac: bytes) -> bytes:
    return _PROOF.pack(_MAGIC, kind, PROTOCOL_VERSION, mac)


def _refusal(reason: int) -> bytes:
    return _REFUSAL.pack(_MAGIC, _KIND_REFUSAL, PROTOCOL_VERSION, reason)


def _head(payload: bytes) -> tuple[int, int]:
    """The payload's kind and version."""
    try:
        magic, kind, version = _HEAD.unpack_from(payload)
    except error:
        magic = kind = version = None
    if magic != _MAGIC:
        raise HandshakeError("the other side is no triolet process")
    return kind, version


def _unpack(layout: Struct, expected: int, payload: bytes) -> tuple[Any, ...]:
    """What follows the head of a payload of the expected kind and our own version."""
    kind, version = _head(payload)
    if version != PROTOCOL_VERSION:
        raise WrongVersionError(
            f"the other side speaks version {version} of the protocol, this one version {PROTOCOL_VERSION}: "
            "run the same release of triolet on both",
            reply=_refusal(_REASON_VERSION),
        )
    if kind != expected or len(payload) != layout.size:
        raise HandshakeError(
            f"expected payload {expected} of {layout.size} bytes, got {kind}, {len(payload)}"
        )
    return layout.unpack(payload)[3:]


def _check_not_refused(payload: bytes) -> None:
    kind, version = _head(payload)
    if kind != _KIND_REFUSAL:
        return
    if payload[-1] == _REASON_SECRET:
        raise WrongSecretError("the other side was started with another secret")
    raise WrongVersionError(
        f"the other side speaks version {version} of the protocol, this one version {PROTOCOL_VERSION}: "
        "run the same release of triolet on both"
    )
