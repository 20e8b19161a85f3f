"""A thinking budget in token ids, and the models that it cannot be kept with."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes import write_byte_model
from tests.triolet.frontend.parts import input_processor

from triolet.errors import InvalidRequestError
from triolet.frontend.thinking import thinking_limit
from triolet.request import ThinkingLimit
from triolet.sampling_params import SamplingParams
from triolet.text.reasoning import REASONING_FORMATS
from triolet.text.tokenizer import Tokenizer

THINK, *_, GEMMA = REASONING_FORMATS


@pytest.fixture(scope="module")
def tokenizer(byte_model: Path) -> Tokenizer:
    return input_processor(byte_model).tokenizer


class Merging:
    """Writes the marks in tokens that it might merge with others; ``special_token_ids`` as given."""

    def __init__(self, special_token_ids: frozenset[int] = frozenset()) -> None:
        self.special_token_ids = special_token_ids

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [1, 2, 3]

    def decode(self, token_ids: object, *, skip_special_tokens: bool = True) -> str:
        return ""

    def token_bytes(self, token_ids: object, *, skip_special_tokens: bool = False) -> bytes:
        return b""


def limit(tokenizer: Tokenizer, prompt: str, budget: int | None = 5) -> ThinkingLimit | None:
    return thinking_limit(SamplingParams(thinking_budget=budget), THINK, tokenizer, list(prompt.encode()))


def test_marks_become_tokens(tokenizer: Tokenizer) -> None:
    wanted = ThinkingLimit(
        max_tokens=5, opening=tuple(b"<think>"), closing=tuple(b"</think>"), is_open=False,
        spaces=tuple(b"\t\n\r "),
    )  # fmt: skip
    assert limit(tokenizer, "hello") == wanted
    assert limit(tokenizer, "hello", None) is None


@pytest.mark.parametrize("prompt", ["<think>", "x" * 100 + "<think>\n"])
def test_the_prompt_may_have_opened_it(tokenizer: Tokenizer, prompt: str) -> None:
    found = limit(tokenizer, prompt)
    assert found is not None
    assert found.is_open


def test_a_model_that_does_not_reason_has_none(byte_model: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"^thinking_budget: .* no marks") as caught:
        input_processor(byte_model).prepare("hello", SamplingParams(thinking_budget=5))
    assert caught.value.param == "thinking_budget"


def test_a_mark_that_might_be_missed_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"no token of its own for '<think>'"):
        limit(Merging(), "hello")  # type: ignore[arg-type]
    assert limit(Merging(frozenset({1})), "hello") is not None  # type: ignore[arg-type]


def test_white_space_at_the_end_of_a_mark_is_not_waited_for(tokenizer: Tokenizer) -> None:
    """It may be written as one token with more of it."""
    found = thinking_limit(SamplingParams(thinking_budget=5), GEMMA, tokenizer, [1])
    assert found is not None
    assert bytes(found.opening) == b"<|channel>thought"


def test_the_request_has_it(tmp_path: Path) -> None:
    template = "{{ messages[0].content }}<think>{# </think> #}"
    inputs = input_processor(write_byte_model(tmp_path / "m", chat_template=template))
    state = inputs.prepare_chat([{"role": "user", "content": "hi"}], SamplingParams(thinking_budget=5))
    (request,) = state.requests
    assert request.adjustments is not None
    assert request.adjustments.thinking_limit is not None
    assert request.adjustments.thinking_limit.is_open
