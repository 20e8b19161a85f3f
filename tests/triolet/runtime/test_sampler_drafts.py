"""Guesses change how many tokens come at once, and nothing else: neither tokens nor log-probabilities."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.draws import assert_fits, exact_probabilities
from tests.triolet.runtime.fake_constraints import FakeConstraints
from tests.triolet.runtime.rows import make_row
from torch import Tensor

from triolet.request import LogitsAdjustments, ThinkingLimit, TokenLogprobs
from triolet.runtime.sampler import SampledRow, Sampler

VOCAB_SIZE = 24
PROMPT = (3, 4, 5)
LENGTH = 14
SUFFIX_GRAMMAR = " ".join(["|".join(map(str, range(0, VOCAB_SIZE, 2))), "1|3|5|7|9|11"] * LENGTH)
THINKING_LIMIT = ThinkingLimit(max_tokens=5, opening=(3,), closing=(7, 8, 7, 9), is_open=True)

KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 1.4, "top_p": 0.9, "num_logprobs": 3},
    {"temperature": 0.8, "top_k": 6, "num_logprobs": 0},
    {"adjustments": LogitsAdjustments(repetition_penalty=1.8, frequency_penalty=0.5), "num_logprobs": 2},
    {"temperature": 1.0, "adjustments": LogitsAdjustments(presence_penalty=1.5, min_tokens=9,
                                                          end_token_ids=frozenset({1, 2, 3}))},
    {"temperature": 1.0, "num_logprobs": 1,
     "adjustments": LogitsAdjustments(grammar=SUFFIX_GRAMMAR, banned_sequences=((2, 3), (4, 5), (6,)))},
    {"temperature": 1.0, "num_logprobs": 1,
     "adjustments": LogitsAdjustments(repetition_penalty=1.2, thinking_limit=THINKING_LIMIT)},
]  # fmt: skip


def logits_after(tokens: Sequence[int]) -> Tensor:
    """A model: what follows depends on the last three tokens."""
    generator = torch.Generator().manual_seed(hash(tuple(tokens[-3:])) % 2**31)
    return torch.randn(VOCAB_SIZE, generator=generator) * 2


def generate(
    params: dict[str, Any], mode: Any, guess: Any, *, seed: int = 5
) -> tuple[list[int], list[TokenLogprobs], int]:
    """``LENGTH`` tokens, with the guesses that ``guess`` makes of those so far; and the steps."""
    sampler = Sampler(VOCAB_SIZE, logprobs_mode=mode, constraints=FakeConstraints())
    tokens, num_steps = list(PROMPT), 0
    logprobs: list[TokenLogprobs] = []
    while len(tokens) < len(PROMPT) + LENGTH:
        draft = tuple(guess(tokens))[: len(PROMPT) + LENGTH - len(tokens)]
        history = None if num_steps else tuple(tokens)
        row = make_row(
            (tokens[-1], *draft), start=len(tokens) - 1, num_draft_tokens=len(draft), history=history,
            prompt_token_ids=PROMPT, seed=seed, **params,
        )  # fmt: skip
        sampler.begin([row])
        so_far = [[*tokens, *draft[:count]] for count in range(len(draft) + 1)]
        (sampled,) = sampler.sample(torch.stack([logits_after(said) for said in so_far]), [row], torch.clone)
        assert sampled.error is None
        assert 1 <= len(sampled.token_ids) <= len(draft) + 1
        tokens += sampled.token_ids
        logprobs += sampled.logprobs or ()
        num_steps += 1
    return tokens[: len(PROMPT) + LENGTH], logprobs[:LENGTH], num_steps


@pytest.mark.parametrize("mode", ["raw", "processed"])
@pytest.mark.parametrize(
    "params", KINDS, ids=["greedy", "whole", "top-p", "top-k", "penalties", "least", "grammar", "thinking"]
)
def test_any_guesses_give_what_none_give(params: dict[str, Any], mode: Any) -> None:
    tokens, logprobs, num_steps = generate(params, mode, lambda said: ())
    assert num_steps == LENGTH
    rng = random.Random(1)

    def oracle(said: list[int]) -> list[int]:
        return tokens[len(said) : len(said) + 4]

    def often_wrong(said: list[int]) -> list[int]:
        right = tokens[len(said) : len(said) + rng.randrange(6)]
        return [token if rng.random() < 0.7 else rng.randrange(VOCAB_SIZE) for token in right]

    def wrong(said: list[int]) -> list[int]:
        return [(token + 2) % VOCAB_SIZE for token in tokens[len(said) : len(said) + 3]]

    assert generate(params, mode, oracle) == (tokens, logprobs, 3)
    for guess in (often_wrong, often_wrong, often_wrong):
        assert generate(params, mode, guess)[:2] == (tokens, logprobs)
    assert generate(params, mode, wrong) == (tokens, logprobs, LENGTH)


@given(guesses=st.lists(st.integers(0, 3), max_size=5), seed=st.integers(0, 50))
def test_a_row_ends_after_the_first_guess_that_is_wrong(guesses: list[int], seed: int) -> None:
    logits = torch.randn(len(guesses) + 1, 4, generator=torch.Generator().manual_seed(seed))
    best = logits.argmax(dim=-1).tolist()
    row = make_row((0, *guesses), num_draft_tokens=len(guesses))
    (sampled,) = Sampler(4).sample(logits, [row], torch.clone)
    num_right = next((i for i, token in enumerate(guesses) if token != best[i]), len(guesses))
    assert sampled == SampledRow(token_ids=tuple(best[: num_right + 1]))


def test_nothing_comes_after_an_end_that_was_guessed() -> None:
    """A grammar would have to allow it, and after an end it allows nothing."""
    logits = torch.zeros(3, 5)
    logits[0, 3] = logits[1, 4] = logits[2, 1] = 1.0
    row = make_row((0, 3, 4), num_draft_tokens=2, num_logprobs=0, stop_token_ids=frozenset({4}))
    (sampled,) = Sampler(5).sample(logits, [row], torch.clone)
    assert sampled.token_ids == (3, 4)


def test_an_error_after_a_right_guess_waits_for_its_turn() -> None:
    logits = torch.zeros(3, 5)
    logits[0, 3] = logits[1, 4] = 1.0
    logits[1, 0] = torch.nan
    (sampled,) = Sampler(5).sample(logits, [make_row((0, 3, 4), num_draft_tokens=2)], torch.clone)
    assert sampled == SampledRow(token_ids=(3,))
    (sampled,) = Sampler(5).sample(logits, [make_row((0, 2, 4), num_draft_tokens=2)], torch.clone)
    assert sampled == SampledRow(token_ids=(3,))
    (sampled,) = Sampler(5).sample(logits[1:], [make_row((3, 4), num_draft_tokens=1)], torch.clone)
    assert sampled.error == "the model's logits are not finite"


@pytest.mark.parametrize("guess", ["likely", "unlikely"])
def test_tokens_come_with_the_models_own_distribution(guess: str) -> None:
    """The first token whatever the guess, and the second where the first was guessed."""
    first, second = (logits_after((token,)) for token in (1, 2))
    order = first.argsort(descending=True).tolist()
    draft = order[0] if guess == "likely" else order[4]
    seeds = range(8_000)
    rows = [
        make_row((0, draft), slot=0, num_draft_tokens=1, temperature=1.2, top_p=0.95, seed=seed)
        for seed in seeds
    ]
    logits = torch.stack([first, second]).repeat(len(rows), 1)
    sampled = Sampler(VOCAB_SIZE).sample(logits, rows, torch.clone)
    exact = [exact_probabilities(row.numpy(), 1.2, top_p=0.95) for row in (first, second)]
    assert_fits([entry.token_ids[0] for entry in sampled], exact[0])
    following = [entry.token_ids[1] for entry in sampled if len(entry.token_ids) == 2]
    assert len(following) == np.count_nonzero([entry.token_ids[0] == draft for entry in sampled])
    assert_fits(following, exact[1])
