"""How shards find each other, and what they say where they do not."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from tests.shards import make_places, run_shards

from triolet.errors import JoinError, UsageError
from triolet.runtime.shard_joining import join_shards
from triolet.runtime.shard_place import ShardPlace

CPU = torch.device("cpu")


def test_shard_0_says_who_did_not_come() -> None:
    places = make_places(4, join_timeout=0.3)
    phases: list[str] = []

    def run(index: int) -> str:
        with pytest.raises(JoinError) as caught:
            join_shards(places[index], CPU, phases.append if index == 0 else lambda phase: None)
        return str(caught.value)

    said, _ = run_shards(2, run)
    where = f"127.0.0.1:{places[0].port}"
    assert f"shards 2, 3 of 4 did not come to {where} within 0.3 s (--cluster-join-timeout)" in said
    assert phases[-1] == f"waiting for shards 2, 3 of 4 at {where}"


def test_a_shard_says_where_nobody_answered() -> None:
    [leading, following] = make_places(2, join_timeout=0.2)
    assert leading.listener is not None

    os.close(leading.listener)
    with pytest.raises(JoinError, match=rf"nothing answered at 127.0.0.1:{leading.port} within 0.2 s"):
        join_shards(following, CPU, lambda phase: None)


def test_what_is_raised_while_waiting_ends_the_wait() -> None:
    class EnoughError(Exception):
        pass

    def enough(phase: str) -> None:
        raise EnoughError

    with pytest.raises(EnoughError):
        join_shards(make_places(2)[0], CPU, enough)


def test_shards_of_different_numbers_are_told_apart() -> None:
    places = make_places(2)
    places[1] = replace(places[1], count=4)
    places += [replace(places[1], index=index) for index in (2, 3)]

    def run(index: int) -> str:
        place: ShardPlace = places[index]
        with pytest.raises(UsageError, match="must be the same on all machines") as caught:
            join_shards(place, CPU, lambda phase: None)
        return str(caught.value)

    said = run_shards(4, run)
    assert "is 2 here, but 4 elsewhere" in said[0]
    assert "is 4 here, but 2 elsewhere" in said[1]
