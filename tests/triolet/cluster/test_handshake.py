"""Both sides prove the secret; nothing else gets through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.cluster import handshake
from triolet.cluster.handshake import (
    DialerHandshake,
    HandshakeError,
    ListenerHandshake,
    Peer,
    Role,
    WrongSecretError,
    WrongVersionError,
)

PEER = Peer(Role.NODE, 7)


def dialer(secret: bytes = b"secret", peer: Peer = PEER) -> DialerHandshake:
    return DialerHandshake(secret, peer, b"d" * 32)


def listener(secret: bytes = b"secret") -> ListenerHandshake:
    return ListenerHandshake(secret, b"l" * 32)


def test_two_with_the_same_secret_come_together() -> None:
    here, there = dialer(), listener()
    here.finish(there.accept(here.answer(there.challenge(here.hello))))
    assert there.peer == PEER


def test_a_dialer_with_another_secret_is_refused_and_told() -> None:
    here, there = dialer(b"guess"), listener()
    proof = here.answer(there.challenge(here.hello))
    with pytest.raises(WrongSecretError) as caught:
        there.accept(proof)
    assert there.peer is None
    assert caught.value.reply is not None
    with pytest.raises(WrongSecretError, match="another secret"):
        here.finish(caught.value.reply)


def test_a_listener_with_another_secret_is_left() -> None:
    here, there = dialer(), listener()
    here.answer(there.challenge(here.hello))
    forger = listener(b"guess")
    forger.challenge(here.hello)
    with pytest.raises(HandshakeError):
        here.finish(forger._mac(b"listener"))
    with pytest.raises(WrongSecretError, match="the listener does not know the secret"):
        here.finish(handshake._proof(4, forger._mac(b"listener")))


def test_another_version_is_refused_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = dialer(), listener()
    version = handshake.PROTOCOL_VERSION
    monkeypatch.setattr(handshake, "PROTOCOL_VERSION", 77)
    with pytest.raises(
        WrongVersionError, match=f"speaks version {version} of the protocol, this one version 77"
    ) as caught:
        there.challenge(here.hello)
    monkeypatch.setattr(handshake, "PROTOCOL_VERSION", version)
    assert caught.value.reply is not None
    told = f"speaks version 77 of the protocol, this one version {version}"
    with pytest.raises(WrongVersionError, match=told):
        here.answer(caught.value.reply)


def test_a_proof_turned_round_is_none() -> None:
    here, there = dialer(), listener()
    proof = here.answer(there.challenge(here.hello))
    with pytest.raises(HandshakeError):
        here.finish(proof)
    with pytest.raises(WrongSecretError):
        here.finish(proof[:8] + b"\4" + proof[9:])


def test_a_proof_is_of_one_handshake_only() -> None:
    here, there = dialer(), listener()
    proof = here.answer(there.challenge(here.hello))
    again = ListenerHandshake(b"secret", b"n" * 32)
    again.challenge(here.hello)
    with pytest.raises(WrongSecretError):
        again.accept(proof)


@pytest.mark.parametrize("other", [Peer(Role.ENGINE, 7), Peer(Role.NODE, 8)])
def test_a_proof_is_of_one_role_only(other: Peer) -> None:
    here, there = dialer(), listener()
    proof = here.answer(there.challenge(dialer(peer=other).hello))
    with pytest.raises(WrongSecretError):
        there.accept(proof)


@given(st.binary(max_size=100), st.booleans())
def test_garbage_is_refused(garbage: bytes, with_magic: bool) -> None:
    payload = b"triolet\0" + garbage if with_magic else garbage
    here, there = dialer(), listener()
    there.challenge(here.hello)
    for take in (here.answer, here.finish, listener().challenge, there.accept):
        with pytest.raises(HandshakeError):
            take(payload)


@given(st.data())
def test_a_payload_changed_anywhere_is_refused(data: st.DataObject) -> None:
    here, there = dialer(), listener()
    victim = data.draw(st.sampled_from(["hello", "challenge", "proof", "accept"]))

    def changed(name: str, payload: bytes) -> bytes:
        if name != victim:
            return payload
        place = data.draw(st.integers(0, len(payload) - 1))
        flipped = payload[place] ^ data.draw(st.integers(1, 255))
        return payload[:place] + bytes([flipped]) + payload[place + 1 :]

    def shake_hands() -> None:
        challenge = changed("challenge", there.challenge(changed("hello", here.hello)))
        here.finish(changed("accept", there.accept(changed("proof", here.answer(challenge)))))

    with pytest.raises(HandshakeError):
        shake_hands()
