"""The sums of shards' parts, also where one of them fails in the middle."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.shards import run_joined
from torch import Tensor

from triolet.errors import EngineError
from triolet.runtime.shard_group import ShardGroup
from triolet.runtime.sharded_model import Order, compute_hidden, compute_logits, words

TOKENS = torch.arange(3)
ROWS = torch.tensor([0, 2])


class Part:
    """A shard of a model with two sums. ``fails_at`` of them it fails, before that one."""

    dtype = torch.float32

    def __init__(self, group: ShardGroup, fails_at: int | None = None) -> None:
        self.group, self.fails_at = group, fails_at

    def forward(self, token_ids: Tensor, batches: Any, kv_cache: Any, rows: Tensor) -> Tensor:
        x = token_ids.float()[:, None]
        for number in range(2):
            if number == self.fails_at:
                raise ValueError("odd")
            x = self.group.sum(x)
        return x[rows]

    def logits(self, hidden: Tensor) -> Tensor:
        """Of five words: two at the first shard, three at the second."""
        return hidden.expand(-1, 3 if self.group.index else 2) + self.group.index

    def shapes_of_sums(self, num_tokens: int, num_rows: int) -> list[tuple[int, int]]:
        return [(num_tokens, 1)] * 2


def test_orders_have_one_length() -> None:
    assert words(Order.LOGITS, 4, 5).tolist() == [Order.LOGITS, 4, 5, 0, 0, 0, 0, 0]


def test_all_have_the_sum_and_the_first_has_the_logits_of_all() -> None:
    def run(group: ShardGroup) -> tuple[Any, Any]:
        model = Part(group)
        hidden = compute_hidden(group, model, TOKENS, (), (), ROWS)
        assert hidden is not None
        logits = compute_logits(group, model, hidden, 5)
        return hidden.flatten().tolist(), None if logits is None else logits.tolist()

    first, second = run_joined(2, run)
    assert first[0] == second[0] == [0.0, 8.0]
    assert first[1] == [[0, 0, 1, 1, 1], [8, 8, 9, 9, 9]]
    assert second[1] is None


@pytest.mark.parametrize("fails_at", [0, 1])
@pytest.mark.parametrize("index", [0, 1])
def test_one_that_fails_lets_nobody_wait_and_fails_the_step_at_the_first(index: int, fails_at: int) -> None:
    def run(group: ShardGroup) -> str | None:
        broken = Part(group, fails_at if group.index == index else None)
        try:
            compute_hidden(group, broken, TOKENS, (), (), ROWS)
        except (EngineError, ValueError) as error:
            return str(error)
        hidden = compute_hidden(group, Part(group), TOKENS, (), (), ROWS)
        assert hidden is not None
        return None

    def run_on(group: ShardGroup) -> tuple[str | None, int]:
        """The group is whole after the failure."""
        said = run(group)
        if said is not None:
            compute_hidden(group, Part(group), TOKENS, (), (), ROWS)
        return said, group.num_sums

    (said, num_sums), (nothing, others) = run_joined(2, run_on)
    assert said is not None
    assert "odd" in said
    assert nothing is None
    assert num_sums == others == 4
