"""The most likely tokens against a plain sort."""

from __future__ import annotations

import numpy as np
import pytest

from triolet_kernels.reference.candidates import top_candidates


def by_plain_sort(logits: list[float], count: int) -> list[int]:
    return sorted(range(len(logits)), key=lambda token: (-logits[token], token))[:count]


@pytest.mark.parametrize("vocab_size", [1, 2, 63, 1000, 5003])
@pytest.mark.parametrize("kind", ["normal", "ties", "equal", "infinite", "sorted"])
def test_order_is_by_logit_then_by_id(vocab_size: int, kind: str) -> None:
    generator = np.random.default_rng(vocab_size)
    logits = generator.normal(size=vocab_size).astype(np.float32)
    if kind == "ties":
        logits = np.round(logits)
    elif kind == "equal":
        logits[:] = -1.5
    elif kind == "infinite":
        logits[generator.random(vocab_size) < 0.7] = -np.inf
    elif kind == "sorted":
        logits.sort()
    for count in (1, 2, 5, 64, vocab_size - 1, vocab_size, vocab_size + 1):
        if count >= 1:
            expected = by_plain_sort(logits.tolist(), count)
            assert top_candidates(logits, count).tolist() == expected, count


def test_both_zeros_are_the_same_number() -> None:
    logits = np.array([-0.0, 0.0, -0.0, -1.0, 0.0], dtype=np.float32)
    assert top_candidates(logits, 5).tolist() == [0, 1, 2, 4, 3]
    assert top_candidates(logits, 3).tolist() == [0, 1, 2]


def test_logits_are_left_alone() -> None:
    logits = np.arange(500, dtype=np.float32)
    top_candidates(logits, 3)
    top_candidates(logits, 500)
    assert np.array_equal(logits, np.arange(500, dtype=np.float32))
