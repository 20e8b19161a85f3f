"""Whole batches: every row as its request asks, whatever the company."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tests.triolet.runtime.rows import make_row
from torch import Tensor

from triolet.plan import PlanRow
from triolet.runtime.drawing import draw, draw_filtered
from triolet.runtime.random import uniforms
from triolet.runtime.sampler import sample

PARAMS: list[dict[str, Any]] = [
    {},
    {"num_logprobs": 3},
    {"temperature": 1.0},
    {"temperature": 0.7, "num_logprobs": 0},
    {"temperature": 1.3, "top_k": 9},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.0, "top_p": 0.99, "top_k": 100, "num_logprobs": 20},
    {"temperature": 2.0, "min_p": 0.02},
]


def make_logits(num_rows: int, vocab_size: int) -> Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(3)) * 2.5


def make_rows(num_rows: int) -> list[PlanRow]:
    return [
        make_row(slot=index, start=7 * index, seed=1000 + index // 2, **PARAMS[index % len(PARAMS)])
        for index in range(num_rows)
    ]


@pytest.mark.parametrize("vocab_size", [1003, 49152])
def test_a_row_gives_the_same_alone_and_in_any_company(vocab_size: int) -> None:
    logits, rows = make_logits(24, vocab_size), make_rows(24)
    together = sample(logits, rows)
    for index, row in enumerate(rows):
        alone = sample(logits[index : index + 1].clone(), [row])
        assert alone.token_ids[0] == together.token_ids[index]
        assert alone.logprobs[0] == together.logprobs[index]
    shuffled = random.Random(5).sample(range(24), 17)
    mixed = sample(logits[shuffled].contiguous(), [rows[index] for index in shuffled])
    assert mixed.token_ids.tolist() == together.token_ids[shuffled].tolist()
    assert mixed.logprobs == tuple(together.logprobs[index] for index in shuffled)


def test_greedy_takes_the_first_of_the_highest() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [2.0, 1.0, 2.0], [-1.0, -2.0, -0.5]])
    sampled = sample(logits, [make_row(slot=slot) for slot in range(3)])
    assert sampled.token_ids.tolist() == [1, 0, 2]
    assert sampled.logprobs == (None, None, None)
    assert sampled.errors == {}


def test_number_is_that_of_the_seed_and_the_sampled_position() -> None:
    logits = make_logits(2, 500)
    rows = [
        make_row((1, 2, 3), start=4, seed=-9, temperature=0.9),
        make_row(start=6, seed=-9, temperature=0.9, top_p=0.8),
    ]
    # Both sample the token at position 7.
    (number,) = uniforms(torch.tensor([-9]).numpy(), torch.tensor([7]).numpy())
    first, second = logits.numpy()
    expected = [
        draw(first, first.max(), 0.9, number),
        draw_filtered(second, second.max(), 0.9, number, top_p=0.8),
    ]
    assert sample(logits, rows).token_ids.tolist() == expected


def test_logprobs_are_raw_and_start_with_the_sampled_token() -> None:
    logits = make_logits(1, 500)
    sampled = sample(logits, [make_row(temperature=2.0, num_logprobs=4, seed=1)])
    (entry,) = sampled.logprobs
    assert entry is not None
    assert entry.token_ids[0] == sampled.token_ids[0]
    expected = torch.log_softmax(logits[0].double(), dim=-1)[list(entry.token_ids)]
    torch.testing.assert_close(torch.tensor(entry.logprobs, dtype=torch.float64), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("params", PARAMS, ids=str)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, "nothing finite"])
def test_bad_logits_are_an_error_of_their_row_alone(params: dict[str, Any], bad: float | str) -> None:
    logits, rows = make_logits(3, 500), [make_row(slot=slot, seed=slot, **params) for slot in range(3)]
    expected = sample(logits, rows)
    spoilt = logits.clone()
    if isinstance(bad, str):
        spoilt[1] = -torch.inf
    else:
        spoilt[1, 321] = bad
    sampled = sample(spoilt, rows)
    assert list(sampled.errors) == [1]
    assert "not finite" in sampled.errors[1]
    assert sampled.token_ids.tolist() == [expected.token_ids[0], 0, expected.token_ids[2]]
    assert sampled.logprobs == (expected.logprobs[0], None, expected.logprobs[2])


def test_minus_infinity_is_a_probability_of_zero() -> None:
    logits = torch.full((2, 100), -torch.inf)
    logits[:, 42] = 0.5
    sampled = sample(logits, [make_row(), make_row(slot=1, temperature=1.0)])
    assert sampled.token_ids.tolist() == [42, 42]
    assert sampled.errors == {}
