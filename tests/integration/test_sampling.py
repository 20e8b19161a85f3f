"""What a request may ask of sampling, from the library's front door, on a tiny model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from triolet import LLM, SamplingParams

OPTIONS: dict[str, Any] = {
    "num_kv_blocks": 96,
    "num_threads": 1,
    "dtype": "float32",
    "block_size": 8,
    "seed": 1,
}
PROMPTS = ["The quick brown fox jumps over the lazy dog.", "abc abc abc", "x"]

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "logprobs": 3},
    "seeded": {"temperature": 1.0, "seed": 4, "logprobs": 1},
    "filtered": {"temperature": 0.8, "top_p": 0.9, "min_p": 0.01, "seed": 5},
    "penalised": {"temperature": 0.7, "seed": 6, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    "constrained": {"temperature": 1.0, "seed": 7, "allowed_token_ids": list(range(60, 90)), "min_tokens": 9,
                    "logit_bias": {65: 3.0}},
}  # fmt: skip


def answers(model: Path, params: dict[str, Any], **options: Any) -> list[Any]:
    sampling = SamplingParams(max_tokens=20, ignore_eos="min_tokens" not in params, **params)
    with LLM(model=str(model), **OPTIONS | options) as llm:
        outputs = llm.generate(PROMPTS, sampling)
    return [
        (choice.token_ids, choice.logprobs, choice.finish_reason)
        for choice in (output.outputs[0] for output in outputs)
    ]


@pytest.fixture(scope="module")
def llm(byte_llama: Path) -> Iterator[LLM]:
    with LLM(model=str(byte_llama), **OPTIONS) as llm:
        yield llm


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_model_changes_nothing(byte_llama: Path, kind: str) -> None:
    expected = answers(byte_llama, KINDS[kind])
    assert answers(byte_llama, KINDS[kind], speculation="draft", draft_model=str(byte_llama)) == expected


def test_prompt_logprobs_whole_and_in_chunks(byte_llama: Path, llm: LLM) -> None:
    params = SamplingParams(max_tokens=2, prompt_logprobs=2, ignore_eos=True)
    whole = llm.generate(PROMPTS, params)
    with LLM(model=str(byte_llama), **OPTIONS, max_num_seqs=4, max_num_batched_tokens=7) as chunked:
        parts = chunked.generate(PROMPTS, params)
    for output, other in zip(whole, parts, strict=True):
        assert output.prompt_logprobs is not None
        assert output.prompt_logprobs == other.prompt_logprobs
        assert output.prompt_logprobs[0] is None
        told = [entry.token_ids[0] for entry in output.prompt_logprobs[1:] if entry is not None]
        assert told == list(output.prompt_token_ids[1:])


def test_processors_see_the_output_and_decide(llm: LLM) -> None:
    def count_up(output_token_ids: Sequence[int], logits: NDArray[np.float32]) -> NDArray[np.float32]:
        logits[:] = 0
        logits[70 + len(output_token_ids)] = 100
        return logits

    def fail_later(output_token_ids: Sequence[int], logits: NDArray[np.float32]) -> NDArray[np.float32]:
        if len(output_token_ids) == 3:
            raise ValueError("enough")
        return logits

    params = [
        SamplingParams(max_tokens=6, temperature=0.9, logits_processors=[count_up]),
        SamplingParams(max_tokens=6, logits_processors=[fail_later], ignore_eos=True),
        SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True),
    ]
    first, second, third = llm.generate(PROMPTS, params)
    assert first.outputs[0].token_ids == [70, 71, 72, 73, 74, 75]
    assert second.outputs[0].finish_reason == "error"
    assert "fail_later raised ValueError: enough" in (second.error or "")
    alone = llm.generate(PROMPTS[2], params[2])[0]
    assert third.outputs[0].token_ids == alone.outputs[0].token_ids


def test_what_may_not_come_does_not(llm: LLM) -> None:
    params = SamplingParams(max_tokens=60, temperature=2.0, seed=3, ignore_eos=True)
    free = llm.generate("x", params)[0].outputs[0].token_ids
    few = sorted(set(free))[:3]
    (output,) = llm.generate("x", params.replace(allowed_token_ids=few))
    assert set(output.outputs[0].token_ids) == set(few)
    text = output.outputs[0].text
    pair = next(text[i : i + 2] for i in range(len(text) - 1) if text[i : i + 2].isascii())
    (without,) = llm.generate("x", params.replace(allowed_token_ids=few, bad_words=[pair]))
    assert pair in text
    assert pair not in without.outputs[0].text
