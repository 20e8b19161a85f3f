"""Which tokens close a turn."""

from __future__ import annotations

import pytest
import tokenizers
from tokenizers import models

from triolet.text.tokenizer_parts import end_of_turn_ids


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (None, set()),
        ("no such token", set()),
        ("{{ m.content }}<|im_end|>", {1}),
        ("<|im_end|> and <end_of_turn>", {1, 2}),
        ("<|eot_id|> is an ordinary token here, <|other|> no end", set()),
    ],
)
def test_special_tokens_of_the_template_that_close_a_turn(template: str | None, expected: set[int]) -> None:
    backend = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    backend.add_special_tokens(["<|im_end|>", "<end_of_turn>", "<|other|>"])
    backend.add_tokens(["<|eot_id|>"])
    assert end_of_turn_ids(backend, template) == expected
