"""A prompt's own tokens: the right ones, with bounded memory, and what is wrong with one row alone."""

from __future__ import annotations

import torch
from tests.triolet.runtime.rows import make_row
from torch import Tensor

from triolet.plan import PlanRow
from triolet.runtime.prompt_logprobs import MAX_LOGIT_ROWS, prompt_logprobs

VOCAB_SIZE = 30


def make_prompt(length: int, seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(VOCAB_SIZE, (length,), generator=generator).tolist())


def prompt_row(prompt: tuple[int, ...], start: int, end: int, *, slot: int = 0, num_top: int = 2) -> PlanRow:
    return make_row(
        prompt[start:end], slot=slot, start=start, prompt_token_ids=prompt, num_prompt_logprobs=num_top
    )


def test_entries_are_those_of_the_tokens_that_follow() -> None:
    first, second = make_prompt(200, 1), make_prompt(9, 2)
    rows = [prompt_row(first, 0, 150), make_row((1, 2), slot=1), prompt_row(second, 4, 9, slot=2, num_top=0)]
    logits = torch.randn(150 + 4, VOCAB_SIZE, generator=torch.Generator().manual_seed(3))
    sizes: list[int] = []

    def logits_of(hidden: Tensor) -> Tensor:
        sizes.append(len(hidden))
        return hidden.clone()

    result = prompt_logprobs(logits, rows, logits_of)
    assert max(sizes) <= MAX_LOGIT_ROWS
    assert result.errors == {}
    assert sorted(result.logprobs) == [0, 2]
    expected = torch.log_softmax(logits.double(), dim=-1)
    following = [*first[1:151], *second[5:9]]
    entries = [*result.logprobs[0], *result.logprobs[2]]
    assert [entry.token_ids[0] for entry in entries] == following
    for index, entry in enumerate(entries):
        row = expected[index]
        assert entry.rank == 1 + int((row > row[entry.token_ids[0]]).sum())
        assert entry.token_ids[1:] == (tuple(row.topk(2).indices.tolist()) if index < 150 else ())
        values = torch.tensor(entry.logprobs, dtype=torch.float64)
        torch.testing.assert_close(values, row[list(entry.token_ids)], rtol=0, atol=1e-6)


def test_no_rows_no_logits() -> None:
    rows = [make_row(), prompt_row((1, 2, 3), 2, 3, slot=1)]
    result = prompt_logprobs(torch.empty(0, VOCAB_SIZE), rows, lambda hidden: 1 / 0)  # type: ignore[arg-type, return-value]
    assert (result.logprobs, result.errors) == ({}, {})


def test_what_is_wrong_with_a_row_is_its_own() -> None:
    prompt = (1, 2, 99, 3)
    logits = torch.zeros(7, VOCAB_SIZE)
    logits[1, 4] = torch.nan
    rows = [
        prompt_row((1, 2, 3), 0, 3),
        prompt_row(prompt, 0, 4, slot=1),
        prompt_row((1, 2, 3), 0, 3, slot=2),
    ]
    result = prompt_logprobs(logits, rows, torch.clone)
    assert result.errors == {
        0: "the model's logits are not finite",
        1: f"token id 99 is not in the vocabulary [0, {VOCAB_SIZE})",
    }
    assert [entry.token_ids[0] for entry in result.logprobs[2]] == [2, 3]
