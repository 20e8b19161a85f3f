"""``suffix`` of completions: what the engine is asked, and when it is refused."""

from __future__ import annotations

from typing import Any

import pytest
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.fake_text import ByteTokenizer
from tests.triolet.web.serving import serving

from triolet.sampling_params import SamplingParams

pytestmark = pytest.mark.anyio
MARKS = {"<fim_prefix>": 250, "<fim_suffix>": 251, "<fim_middle>": 252, "<|endoftext|>": 253}


class CodeTokenizer(ByteTokenizer):
    """Has marks for a gap; texts are bytes."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        known = MARKS.get(text)
        return super().encode(text, add_special_tokens=add_special_tokens) if known is None else [known]

    def id_to_token(self, token_id: int) -> str | None:
        return {token_id: mark for mark, token_id in MARKS.items()}.get(token_id) or chr(token_id)


async def ask(anyio_backend_name: str, tokenizer: ByteTokenizer, **body: Any) -> tuple[Any, FakeEngine]:
    engine = FakeEngine(reply="xyz")
    engine.tokenizer = tokenizer
    async with serving(engine, anyio_backend_name) as running:
        response = await running.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 3} | body)
    return response.json(), engine


async def test_the_gap_is_filled(anyio_backend_name: str) -> None:
    answer, engine = await ask(anyio_backend_name, CodeTokenizer(), prompt=["a", "b"], suffix="z")
    assert [choice["text"] for choice in answer["choices"]] == ["xyz", "xyz"]
    prompts = [prompt for prompt, _, _ in engine.submitted]
    assert prompts == [f"<fim_prefix>{left}<fim_suffix>z<fim_middle>" for left in "ab"]
    assert [_stop_token_ids(params) for _, params, _ in engine.submitted] == [(253,), (253,)]


def _stop_token_ids(params: object) -> tuple[int, ...]:
    assert isinstance(params, SamplingParams)
    return tuple(params.stop_token_ids)


@pytest.mark.parametrize("suffix", ["", None])
async def test_no_suffix_is_a_completion_as_ever(anyio_backend_name: str, suffix: str | None) -> None:
    _, engine = await ask(anyio_backend_name, CodeTokenizer(), suffix=suffix)
    ((prompt, params, _),) = engine.submitted
    assert (prompt, _stop_token_ids(params)) == ("a", ())


@pytest.mark.parametrize(
    ("fields", "param", "problem"),
    [
        ({"prompt": [1, 2]}, "suffix", "needs a prompt of text"),
        ({"echo": True}, "echo", "not with suffix"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "not with suffix"),
    ],
)
async def test_what_does_not_go_with_it(
    anyio_backend_name: str, fields: dict[str, Any], param: str, problem: str
) -> None:
    answer, engine = await ask(anyio_backend_name, CodeTokenizer(), suffix="z", **fields)
    assert answer["error"]["param"] == param
    assert problem in answer["error"]["message"]
    assert not engine.submitted


async def test_a_model_without_marks_refuses_it(anyio_backend_name: str) -> None:
    answer, _ = await ask(anyio_backend_name, ByteTokenizer(), suffix="z")
    assert answer["error"]["param"] == "suffix"
    assert "no tokens for filling in the middle" in answer["error"]["message"]
