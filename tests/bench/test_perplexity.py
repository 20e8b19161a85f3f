"""Perplexity of a model that can be worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from bench.perplexity import main, perplexity
from torch import Tensor

from triolet.models.config import ModelConfig, RopeConfig
from triolet_kernels.ops import AttentionBatch

CPU = torch.device("cpu")


class CountingUp:
    """Gives ``odds : 1`` to the token after the present one, and is fed runs of the length it notes."""

    def __init__(self, vocab_size: int, odds: float) -> None:
        self.config = ModelConfig(
            architecture="llama",
            vocab_size=vocab_size,
            hidden_size=8,
            intermediate_size=8,
            num_layers=1,
            num_heads=1,
            num_kv_heads=1,
            head_dim=8,
            rms_norm_eps=1e-6,
            max_position_embeddings=64,
            rope=RopeConfig(theta=1e4, dim=8),
            windows=(None,),
            attention_scale=1.0,
        )
        self.odds = odds
        self.runs: list[int] = []

    def forward(self, token_ids: Tensor, batches: list[AttentionBatch], cache: Any, rows: Tensor) -> Tensor:
        (batch,) = batches
        self.runs.append(batch.max_query_length)
        return token_ids[rows]

    def logits(self, hidden: Tensor) -> Tensor:
        logits = torch.zeros(len(hidden), self.config.vocab_size)
        logits[torch.arange(len(hidden)), hidden + 1] = torch.tensor(self.odds).log()
        return logits


def test_perplexity_is_the_inverse_of_the_probability_given() -> None:
    model: Any = CountingUp(vocab_size=90, odds=11.0)
    value = perplexity(model, range(80), context=33, dtype=torch.float32, device=CPU)
    assert value == pytest.approx((11 + 89) / 11, rel=1e-5)
    assert model.runs == [33, 33, 14]


def test_a_lone_token_at_the_end_predicts_nothing() -> None:
    model: Any = CountingUp(vocab_size=90, odds=2.0)
    perplexity(model, range(67), context=33, dtype=torch.float32, device=CPU)
    assert model.runs == [33, 33]


@pytest.mark.parametrize("cache_dtype", ["auto", "int8"])
def test_the_program_compares_both_modes(
    byte_llama: Path, capsys: pytest.CaptureFixture[str], cache_dtype: str
) -> None:
    options = ["--num-tokens", "40", "--context", "16", "--dtype", "float32", "--kv-cache-dtype", cache_dtype]
    assert main(["--model", str(byte_llama), *options]) == 0
    *_, reference, fast, ratio = capsys.readouterr().out.splitlines()
    assert (reference.split()[0], fast.split()[0]) == ("reference", "fast")
    assert float(ratio.split()[-1]) == pytest.approx(1.0, abs=0.01)
