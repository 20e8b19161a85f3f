"""Whole batches: every row as its request asks, whatever the company."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from tests.kernels.draws import exact_probabilities
from tests.triolet.runtime.rows import make_row
from torch import Tensor

from triolet.plan import PlanRow
from triolet.request import LogitsAdjustments
from triolet.runtime.adjustments import RowAdjuster
from triolet.runtime.random import uniforms
from triolet.runtime.sampler import SampledRow, Sampler
from triolet_kernels.ops import MAX_DRAWN
from triolet_kernels.reference.drawing import draw, draw_filtered

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


def sample(logits: Tensor, rows: list[PlanRow], **options: Any) -> list[SampledRow]:
    """Sample with the logits themselves for hidden states."""
    return Sampler(logits.shape[1], **options).sample(logits, rows, torch.clone)


def tokens_of(sampled: list[SampledRow]) -> list[int]:
    """The token of each row that has one token."""
    return [token_id for entry in sampled for (token_id,) in (entry.token_ids,)]


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
        assert sample(logits[index : index + 1], [row]) == [together[index]]
    shuffled = random.Random(5).sample(range(24), 17)
    mixed = sample(logits[shuffled], [rows[index] for index in shuffled])
    assert mixed == [together[index] for index in shuffled]


def test_greedy_takes_the_first_of_the_highest() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [2.0, 1.0, 2.0], [-1.0, -2.0, -0.5]])
    sampled = sample(logits, [make_row(slot=slot) for slot in range(3)])
    assert sampled == [SampledRow(token_ids=(1,)), SampledRow(token_ids=(0,)), SampledRow(token_ids=(2,))]


def test_number_is_that_of_the_seed_and_the_sampled_position() -> None:
    logits = make_logits(2, 500)
    rows = [
        make_row((1, 2, 3), start=4, seed=-9, temperature=0.9),
        make_row(start=6, seed=-9, temperature=0.9, top_p=0.8),
    ]
    # Both sample the token at position 7.
    number = float(uniforms(torch.tensor([-9]).numpy(), torch.tensor([7]).numpy())[0, 0])
    first, second = logits.numpy()
    expected = [
        draw(first, first.max(), 0.9, number),
        draw_filtered(second, second.max(), 0.9, number, top_p=0.8)[0],
    ]
    assert tokens_of(sample(logits, rows)) == expected


def test_logprobs_are_raw_and_start_with_the_sampled_token() -> None:
    logits = make_logits(1, 500)
    (sampled,) = sample(logits, [make_row(temperature=2.0, num_logprobs=4, seed=1)])
    assert sampled.logprobs is not None
    (entry,) = sampled.logprobs
    assert entry.token_ids[:1] == sampled.token_ids
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
    assert sampled[1] == SampledRow(token_ids=(0,), error="the model's logits are not finite")
    assert sampled[::2] == expected[::2]


def test_minus_infinity_is_a_probability_of_zero() -> None:
    logits = torch.full((2, 100), -torch.inf)
    logits[:, 42] = 0.5
    sampled = sample(logits, [make_row(), make_row(slot=1, temperature=1.0)])
    assert sampled == [SampledRow(token_ids=(42,))] * 2


def test_few_rows_of_logits_are_made_at_a_time() -> None:
    sizes: list[int] = []

    def logits_of(hidden: Tensor) -> Tensor:
        sizes.append(len(hidden))
        return hidden.clone()

    logits = make_logits(150, 50)
    rows = [make_row((0, 1, 2), slot=slot, num_draft_tokens=2) for slot in range(50)]
    sampled = Sampler(50).sample(logits, rows, logits_of)
    assert sum(sizes) == 150
    assert max(sizes) <= MAX_DRAWN
    assert sampled == sample(logits[:60], rows[:20]) + sample(logits[60:], rows[20:])
    long = make_row((0,) * 100, num_draft_tokens=99)
    assert len(Sampler(50).sample(logits[:100], [long], logits_of)) == 1


def test_a_row_where_nothing_is_left_is_its_own_error() -> None:
    logits = make_logits(3, 40)
    hopeless = LogitsAdjustments(allowed_token_ids=(3, 4), banned_sequences=((3,), (4,)))
    rows = [
        make_row(temperature=1.0, adjustments=hopeless, history=(0,)),
        make_row(slot=1, adjustments=LogitsAdjustments(allowed_token_ids=(3, 4)), history=(0,)),
        make_row(slot=2),
    ]
    sampler = Sampler(40)
    sampler.begin(rows)
    first, second, third = sampler.sample(logits, rows, torch.clone)
    assert first.error == (
        "allowed_token_ids: no token is left to choose from: allowed_token_ids and bad_words forbid every one"
    )
    assert first.error_param == "allowed_token_ids"
    assert second.token_ids == (3 + int(logits[1, 4] > logits[1, 3]),)
    assert third.token_ids == (int(logits[2].argmax()),)


@pytest.mark.parametrize("mode", ["raw", "processed"])
@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_logprobs_with_adjustments(mode: Any, params: dict[str, Any]) -> None:
    """Raw ones are of the logits as they came, processed ones of what was drawn from."""
    logits = make_logits(1, 300)
    adjustments = LogitsAdjustments(
        logit_bias=((7, 4.0), (9, 3.5)), repetition_penalty=1.5, banned_sequences=((int(logits.argmax()),),)
    )
    params = params | {"num_logprobs": 5}
    row = make_row(seed=5, adjustments=adjustments, history=(0, 7), **params)
    sampler = Sampler(300, logprobs_mode=mode)
    sampler.begin([row])
    (sampled,) = sampler.sample(logits, [row], torch.clone)
    changed = logits[0].numpy().copy()
    RowAdjuster(adjustments, (0,), (7,)).apply(changed)
    filters = {name: value for name, value in params.items() if name in ("top_k", "top_p", "min_p")}
    temperature = params.get("temperature", 0.0)
    if mode == "raw":
        probabilities = dict(enumerate(torch.softmax(logits[0].double(), dim=-1).tolist()))
    elif temperature:
        probabilities = exact_probabilities(changed, temperature, **filters)
    else:
        probabilities = exact_probabilities(changed, 1.0)
    assert sampled.logprobs is not None
    (entry,) = sampled.logprobs
    best = sorted(probabilities, key=lambda token: -probabilities[token])
    assert entry.token_ids == (*sampled.token_ids, *best[:5])
    assert entry.rank == best.index(sampled.token_ids[0]) + 1
    expected = [math.log(probabilities[token]) for token in entry.token_ids]
    assert entry.logprobs == pytest.approx(expected, abs=2e-6)


def test_processed_logprobs_leave_out_what_cannot_come() -> None:
    logits = make_logits(2, 30)
    allowed = LogitsAdjustments(allowed_token_ids=(4, 5))
    rows = [
        make_row(temperature=1.0, top_k=2, num_logprobs=5),
        make_row(slot=1, adjustments=allowed, num_logprobs=5, history=(0,)),
    ]
    sampler = Sampler(30, logprobs_mode="processed")
    sampler.begin(rows)
    for sampled in sampler.sample(logits, rows, torch.clone):
        assert sampled.logprobs is not None
        (entry,) = sampled.logprobs
        assert len(entry.token_ids) == len(entry.logprobs) == 3
        assert sum(map(math.exp, entry.logprobs[1:])) == pytest.approx(1, abs=1e-6)
