"""Which tokens of a step logits are wanted after."""

from __future__ import annotations

import numpy as np
import pytest
from tests.triolet.runtime.rows import make_row

from triolet.runtime.logit_rows import num_prompt_rows, prompt_rows, sampled_rows

PROMPT = tuple(range(10))


def test_indices_are_those_of_the_batch() -> None:
    rows = [
        make_row((1, 2, 3), slot=0),
        make_row((1, 2, 3, 4), slot=1, is_sampled=False),
        make_row((1, 2, 3, 4), slot=2, num_draft_tokens=2),
        make_row((), slot=3),
        make_row((5, 6, 7), slot=4, start=4, prompt_token_ids=PROMPT, num_prompt_logprobs=0),
    ]
    starts = np.cumsum([0, *(row.num_tokens for row in rows)])
    assert sampled_rows(rows, starts).tolist() == [2, 8, 9, 10, 11, 14]
    assert prompt_rows(rows, starts).tolist() == [12, 13, 14]
    assert sampled_rows(rows[1:2], starts[:2]).tolist() == []
    assert prompt_rows(rows[:4], starts[:5]).tolist() == []


@pytest.mark.parametrize(
    ("start", "num_tokens", "expected"), [(0, 4, 4), (4, 6, 5), (8, 2, 1), (9, 1, 0), (9, 3, 0), (12, 1, 0)]
)
def test_the_last_token_of_a_prompt_predicts_the_output(start: int, num_tokens: int, expected: int) -> None:
    row = make_row((0,) * num_tokens, start=start, prompt_token_ids=PROMPT, num_prompt_logprobs=2)
    assert num_prompt_rows(row) == expected
    assert num_prompt_rows(make_row((0,) * num_tokens, start=start, prompt_token_ids=PROMPT)) == 0
