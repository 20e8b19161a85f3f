"""A shard that follows: until it is told to end, and with word of why where it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.shards import make_places, run_joined, run_shards

from triolet.args import EngineArgs
from triolet.errors import EngineDeadError, ModelLoadError
from triolet.models.source import ModelFiles
from triolet.runtime import following_shard
from triolet.runtime.following_shard import follow, follow_place
from triolet.runtime.shard_group import ShardGroup
from triolet.runtime.shard_joining import join_shards
from triolet.runtime.sharded_model import Order, words


class Loaded:
    """What loading gives, of nothing."""

    sources: Any = None
    vocab_size = 1
    device = torch.device("cpu")
    model: Any = None
    kv_cache = ()


def test_it_follows_until_it_is_told_that_it_is_enough() -> None:
    def run(group: ShardGroup) -> bool:
        if group.leads:
            group.order(words(Order.RELEASE))
            group.order(words(Order.END))
        else:
            follow(group, Loaded())  # type: ignore[arg-type]
        return True

    assert run_joined(2, run) == [True, True]


def test_one_that_cannot_load_leaves_word_of_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise ModelLoadError("no weights")

    monkeypatch.setattr(following_shard, "load_parts", fail)
    places = make_places(2)
    args = EngineArgs(device="cpu")

    def run(index: int) -> str:
        if index:
            with pytest.raises(ModelLoadError, match="no weights"):
                follow_place(places[1], ModelFiles(Path(), "gguf", ()), args, num_sharing=2)
            return ""
        group = join_shards(places[0], torch.device("cpu"), lambda phase: None)
        with pytest.raises(EngineDeadError) as caught:
            group.together(lambda: None)
        return str(caught.value)

    said, _ = run_shards(2, run)
    assert "shard 1 failed: ModelLoadError: no weights" in said
