"""Shards as threads, joined by gloo: what they add up, tell each other and hear of one that is gone."""

from __future__ import annotations

import threading

import pytest
import torch
from tests.shards import run_joined

from triolet.errors import EngineDeadError, EngineError, UsageError
from triolet.runtime.shard_group import ShardGroup


def part(index: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(index)
    return (torch.randn(5, 7, generator=generator) * 1000.0 ** (index - 1)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_are_in_the_order_of_the_shards_bit_for_bit(dtype: torch.dtype) -> None:
    def run(group: ShardGroup) -> list[torch.Tensor]:
        return [group.sum(part(group.index, dtype)) for _ in range(20)]

    expected = ((part(0, dtype).float() + part(1, dtype).float()) + part(2, dtype).float()).to(dtype)
    for sums in run_joined(3, run):
        assert all(torch.equal(total, expected) for total in sums)


def test_what_shard_0_has_reaches_all_and_what_they_have_reaches_it() -> None:
    def run(group: ShardGroup) -> tuple[list[int], list[int], list[list[float]], tuple[int, ...]]:
        words = group.order(torch.tensor([group.index + 5, 6]))
        values = group.broadcast(torch.tensor([group.index + 7]))
        gathered = [x.tolist() for x in group.gather(torch.tensor([float(group.index)]))]
        return words.tolist(), values.tolist(), gathered, group.smallest([group.index, 9 - group.index])

    results = run_joined(3, run)
    assert [result[:2] for result in results] == [([5, 6], [7])] * 3
    assert [result[2] for result in results] == [[[0.0], [1.0], [2.0]], [], []]
    assert [result[3] for result in results] == [(0, 7)] * 3


def test_all_fail_with_what_one_fails_with_and_with_their_own_before() -> None:
    def run(group: ShardGroup) -> str:
        def load() -> int:
            if group.index == 1:
                raise UsageError("too long", param="max_model_len")
            return group.index

        with pytest.raises(UsageError, match="too long"):
            group.together(load)
        return str(group.together(lambda: group.index))

    assert run_joined(3, run) == ["0", "1", "2"]


def test_only_shard_0_raises_what_a_step_failed_with() -> None:
    def run(group: ShardGroup) -> str:
        try:
            group.report(ValueError("odd") if group.index == 2 else None)
        except EngineError as error:
            return str(error)
        return ""

    assert run_joined(3, run) == ["tensor parallel shard 2: ValueError: odd", "", ""]


def test_the_others_hear_that_a_shard_is_gone_and_why() -> None:
    is_joined = threading.Barrier(2, timeout=20)

    def run(group: ShardGroup) -> str:
        is_joined.wait()
        if group.index == 1:
            group.leave_word("ValueError: odd")
            group.close()
            return ""
        with pytest.raises(EngineDeadError) as caught:
            group.sum(part(0))
        group.close()
        with pytest.raises(EngineDeadError, match="have parted"):
            group.sum(part(0))
        return str(caught.value)

    said, _ = run_joined(2, run)
    assert said == "a tensor parallel shard was lost: shard 1 failed: ValueError: odd"
