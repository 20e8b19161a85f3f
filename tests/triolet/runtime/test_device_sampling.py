from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.triolet.runtime.fake_device import FakeDevice
from tests.triolet.runtime.rows import make_row

from triolet.plan import PlanRow
from triolet.request import LogitsAdjustments
from triolet.runtime import device_sampling
from triolet.runtime.device_sampling import DeviceSampler
from triolet.runtime.sampler import SampledRow, Sampler
from triolet_kernels.reference import ReferenceOps

VOCAB_SIZE = 37


def make_logits(num_positions: int) -> torch.Tensor:
    return torch.randn(num_positions, VOCAB_SIZE, generator=torch.Generator().manual_seed(3)) * 3


def sampler_of(host: Sampler) -> DeviceSampler:
    return DeviceSampler(
        FakeDevice(),
        ReferenceOps(),
        host,
        vocab_size=VOCAB_SIZE,
        last_token_ids=torch.full((9,), -1),
        logprobs_mode="raw",
    )


def rows_of_all_kinds() -> list[PlanRow]:
    params: list[dict[str, Any]] = [
        {},
        {"temperature": 1.0, "seed": 3},
        {"temperature": 0.7, "top_k": 3, "num_logprobs": 2},
        {"adjustments": LogitsAdjustments(presence_penalty=2.0)},
        {"token_ids": (5, 6, 7), "num_draft_tokens": 2, "temperature": 1.0},
        {"num_logprobs": 0},
        {"adjustments": LogitsAdjustments(repetition_penalty=2.0), "num_logprobs": 1},
    ]
    return [
        make_row(slot=slot, start=1, history=(1, 2), prompt_token_ids=(1,), **param)
        for slot, param in enumerate(params)
    ]


@pytest.mark.parametrize("chunk", [1, 2, 3, 256])
def test_rows_end_up_with_what_the_host_would_sample(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_sampling, "MAX_LOGIT_ROWS", chunk)
    rows = rows_of_all_kinds()
    logits = make_logits(sum(row.num_draft_tokens + 1 for row in rows))
    # Of the guesses one is right.
    best = int(sampler_alone(logits[4:5], rows[4]))
    rows[4] = make_row((5, best, 1), slot=4, start=1, num_draft_tokens=2, temperature=1.0, history=(1, 2))
    expected = host_of(rows).sample(logits.clone(), rows, lambda some: some.clone())
    host = Sampler(VOCAB_SIZE)
    sampler = sampler_of(host)
    sampler.begin(rows)
    draws = sampler.draw(logits, rows, lambda some: some.clone())
    assert_alike(sampler.finish(draws), expected)
    assert len(expected[4].token_ids) == 2
    assert draws.slots.tolist() == list(range(len(rows)))
    assert len(draws.last_token_ids) == len(rows)


def assert_alike(sampled: list[SampledRow], expected: list[SampledRow]) -> None:
    """The same, log-probabilities up to rounding."""
    for entry, wanted in zip(sampled, expected, strict=True):
        assert replace(entry, logprobs=None) == replace(wanted, logprobs=None)
        for got, right in zip(entry.logprobs or (), wanted.logprobs or (), strict=True):
            assert (got.token_ids, got.rank) == (right.token_ids, right.rank)
            np.testing.assert_allclose(got.logprobs, right.logprobs, atol=1e-5)


def host_of(rows: list[PlanRow]) -> Sampler:
    host = Sampler(VOCAB_SIZE)
    host.begin(rows)
    return host


def sampler_alone(logits: torch.Tensor, row: PlanRow) -> int:
    alone = make_row((5,), slot=4, start=1, temperature=1.0, history=(1, 2))
    return host_of([alone]).sample(logits.clone(), [alone], lambda some: some)[0].token_ids[0]


def test_what_is_not_finite_is_that_row_s_error() -> None:
    rows = [make_row(slot=0), make_row(slot=1, num_logprobs=1), make_row(slot=2)]
    logits = make_logits(3)
    logits[1, 4] = torch.nan
    sampler = sampler_of(Sampler(VOCAB_SIZE))
    sampled = sampler.finish(sampler.draw(logits, rows, lambda some: some))
    assert [entry.error for entry in sampled] == [None, "the model's logits are not finite", None]


def test_a_host_that_fails_for_one_row_fails_that_row_alone() -> None:
    class Failing(Sampler):
        def sample(self, *arguments: Any) -> list[SampledRow]:
            raise MemoryError("no room for a mask")

    rows = [make_row(slot=0), make_row(slot=1, adjustments=LogitsAdjustments(min_tokens=1), history=(1,))]
    logits = make_logits(2)
    sampler = sampler_of(Failing(VOCAB_SIZE))
    sampled = sampler.finish(sampler.draw(logits, rows, lambda some: some))
    assert sampled[0].token_ids == (int(np.argmax(logits[0].numpy())),)
    assert sampled[1].error == "MemoryError: no room for a mask"
