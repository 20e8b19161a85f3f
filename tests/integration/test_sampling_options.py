"""What a request may ask for, through the whole engine, on a model of random weights."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.fakes import EOS_ID

from triolet import Engine, FinishReason, RequestOptions, RequestOutput, SamplingParams
from triolet.errors import InvalidRequestError

pytestmark = pytest.mark.anyio

PROMPT = "a prompt that is longer than what one step computes of it"


@pytest.fixture
async def engine(byte_llama: Path) -> AsyncIterator[Engine]:
    options: dict[str, Any] = {"num_kv_blocks": 64, "block_size": 8, "num_threads": 1, "dtype": "float32"}
    async with Engine(model=str(byte_llama), max_num_seqs=4, max_num_batched_tokens=16, **options) as engine:
        yield engine


async def ask(engine: Engine, prompt: str = PROMPT, **fields: Any) -> RequestOutput:
    options = fields.pop("options", None)
    params = SamplingParams(**{"max_tokens": 8, "output_kind": "final_only", **fields})
    return [output async for output in engine.generate(prompt, params, options=options)][-1]


async def test_the_logprobs_of_the_prompt_are_those_of_transformers(engine: Engine, byte_llama: Path) -> None:
    output = await ask(engine, prompt_logprobs=2, n=2)
    auto_class: Any = transformers.AutoModelForCausalLM
    model = auto_class.from_pretrained(str(byte_llama), dtype=torch.float32)
    token_ids = torch.tensor([list(PROMPT.encode())])
    with torch.no_grad():
        expected = model(token_ids).logits[0].double().log_softmax(-1)
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(PROMPT)
    for place, entry in enumerate(output.prompt_logprobs[1:], 1):
        assert entry is not None
        assert entry.token_ids[0] == ord(PROMPT[place])
        for token_id, logprob in zip(entry.token_ids, entry.logprobs, strict=True):
            assert logprob == pytest.approx(float(expected[place - 1, token_id]), abs=1e-4)


async def test_continuations_share_what_is_computed_of_the_prompt(engine: Engine) -> None:
    await ask(engine, "x")
    before = engine.statistics().ranks[0].core
    output = await ask(engine, n=4, seed=3, temperature=1.0)
    after = engine.statistics().ranks[0].core
    assert len({tuple(item.token_ids) for item in output.outputs}) == 4
    num_whole = len(PROMPT) // 8 * 8
    computed = after.num_computed_prompt_tokens - before.num_computed_prompt_tokens
    assert computed <= len(PROMPT) + 3 * (len(PROMPT) - num_whole + 8)


async def test_tokens_are_those_that_are_allowed(engine: Engine) -> None:
    output = await ask(engine, allowed_token_ids=(*b"xyz",), bad_words=("y", "zz"), max_tokens=30, seed=1)
    text = output.outputs[0].text
    assert set(text) <= set("xz")
    assert "zz" not in text


async def test_a_bias_decides(engine: Engine) -> None:
    output = await ask(engine, logit_bias={ord("q"): 100.0}, temperature=0.0)
    assert output.outputs[0].text == "q" * 8


async def test_nothing_ends_before_min_tokens(engine: Engine) -> None:
    bias = {EOS_ID: 100.0}
    at_once = await ask(engine, logit_bias=bias)
    later = await ask(engine, logit_bias=bias, min_tokens=5)
    assert at_once.outputs[0].token_ids == [EOS_ID]
    assert len(later.outputs[0].token_ids) == 6
    assert later.outputs[0].finish_reason is FinishReason.STOP


async def test_a_function_of_ones_own_changes_the_logits(engine: Engine) -> None:
    def only_the_next_letter(token_ids: Any, logits: Any) -> Any:
        logits[ord("a") + len(token_ids)] += 1000
        return logits

    output = await ask(engine, logits_processors=(only_the_next_letter,))
    assert output.outputs[0].text == "abcdefgh"


async def test_time_that_is_up_leaves_a_partial_answer(engine: Engine) -> None:
    params = SamplingParams(max_tokens=150, ignore_eos=True)
    options = RequestOptions(timeout=1e-4)
    outputs = [output async for output in engine.generate(PROMPT, params, options=options)]
    assert outputs[-1].outputs[0].finish_reason is FinishReason.TIMEOUT
    assert outputs[-1].num_output_tokens < 150


async def test_what_is_out_of_range_is_refused_before_anything_runs(engine: Engine) -> None:
    num_steps = engine.statistics().num_steps
    cases: list[tuple[dict[str, Any], str]] = [
        ({"logit_bias": {5000: 1.0}}, "logit_bias"),
        ({"allowed_token_ids": (258,)}, "allowed_token_ids"),
        ({"stop_token_ids": (258,)}, "stop_token_ids"),
        ({"min_tokens": 250, "max_tokens": None}, "min_tokens"),
        ({"options": RequestOptions(priority=1)}, "priority"),
    ]
    for fields, param in cases:
        with pytest.raises(InvalidRequestError) as caught:
            await ask(engine, **fields)
        assert caught.value.param == param
    assert engine.statistics().num_steps == num_steps
