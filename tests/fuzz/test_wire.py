"""Ten thousand hostile frames: none does harm."""

from __future__ import annotations

import tracemalloc

from tests.fuzz.wire import fuzz


def test_hostile_bytes_do_no_harm() -> None:
    outcomes = fuzz(10_000, seed=0)
    assert outcomes.total() == 10_000
    assert set(outcomes) == {
        "message refused", "message taken", "stream refused", "stream taken", "handshake refused",
        "handshake begun",
    }  # fmt: skip


def test_hostile_bytes_take_little_memory() -> None:
    tracemalloc.start()
    try:
        fuzz(1000, seed=1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40_000_000
