"""Log-probabilities against float64 and a plain sort."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from triolet.runtime.logprobs import token_logprobs


@pytest.mark.parametrize("scale", [0.1, 3.0, 40.0])
@pytest.mark.parametrize("vocab_size", [1, 50, 4099])
def test_values_are_the_raw_log_softmax(vocab_size: int, scale: float) -> None:
    logits = np.random.default_rng(1).normal(scale=scale, size=vocab_size).astype(np.float32)
    expected = torch.log_softmax(torch.from_numpy(logits).double(), dim=-1).numpy()
    order = sorted(range(vocab_size), key=lambda token: (-logits[token], token))
    for sampled in {0, vocab_size // 2, vocab_size - 1, order[0]}:
        entry = token_logprobs(logits, logits.max(), sampled, 5)
        assert entry.token_ids == (sampled, *order[:5])
        assert entry.rank == order.index(sampled) + 1
        np.testing.assert_allclose(entry.logprobs, expected[list(entry.token_ids)], rtol=3e-7, atol=3e-7)


def test_only_the_sampled_token_when_no_others_are_asked_for() -> None:
    entry = token_logprobs(np.zeros(4, dtype=np.float32), np.float32(0), 2, 0)
    assert entry.token_ids == (2,)
    assert entry.logprobs == pytest.approx((np.log(0.25),), rel=1e-7)
    assert entry.rank == 3


def test_everything_is_plain_python() -> None:
    entry = token_logprobs(np.arange(9, dtype=np.float32), np.float32(8), 2, 3)
    assert {type(token) for token in entry.token_ids} == {int}
    assert {type(value) for value in entry.logprobs} == {float}
    assert type(entry.rank) is int
