"""The limits of a key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from triolet.web.api_keys import ApiKey
from triolet.web.key_limits import KeyLimitError, KeyLimits


def key(name: str = "alice", **limits: Any) -> ApiKey:
    return ApiKey(name=name, digest=b"", source="", **limits)


def test_so_many_at_once() -> None:
    limits = KeyLimits()
    alice = key(max_concurrent_requests=2)
    leave = limits.enter(alice)
    limits.enter(alice)
    with pytest.raises(KeyLimitError, match="max_concurrent_requests") as caught:
        limits.enter(alice)
    assert (caught.value.status, caught.value.retry_after, caught.value.code) == (
        429, 1, "rate_limit_exceeded"
    )  # fmt: skip
    limits.enter(key("bob", max_concurrent_requests=1))
    leave()
    limits.enter(alice)


def test_so_many_in_a_minute() -> None:
    times: Iterator[float] = iter([0.0, 10.0, 20.5, 59.9, 60.0, 61.0, 71.0])
    limits = KeyLimits(clock=lambda: next(times))
    alice = key(max_requests_per_minute=2)
    limits.enter(alice)()
    limits.enter(alice)()
    for wait in (40, 1):
        with pytest.raises(KeyLimitError, match="max_requests_per_minute") as caught:
            limits.enter(alice)
        assert caught.value.retry_after == wait
    limits.enter(alice)()
    with pytest.raises(KeyLimitError):
        limits.enter(alice)
    limits.enter(alice)()


def test_a_key_without_limits_has_none() -> None:
    limits = KeyLimits()
    for _ in range(100):
        limits.enter(key())
