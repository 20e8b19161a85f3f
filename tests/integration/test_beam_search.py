"""Beam search of the whole engine against that of ``transformers``, on a model of random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.fakes import EOS_ID

from triolet import LLM, BeamSearchParams

PROMPTS = ["abc", "one two three ", "x"]


@pytest.fixture(scope="module")
def llm(byte_llama: Path) -> Any:
    with LLM(str(byte_llama), num_kv_blocks=128, num_threads=1, dtype="float32") as llm:
        yield llm


@pytest.fixture(scope="module")
def model(byte_llama: Path) -> Any:
    auto_class: Any = transformers.AutoModelForCausalLM
    return auto_class.from_pretrained(str(byte_llama), dtype=torch.float32).eval()


def search(model: Any, prompt: str, **options: Any) -> list[tuple[list[int], float]]:
    """What ``transformers`` finds: continuations, and their scores."""
    input_ids = torch.tensor([list(prompt.encode())])
    found = model.generate(
        input_ids,
        attention_mask=torch.ones_like(input_ids),
        do_sample=False,
        num_return_sequences=options["num_beams"],
        return_dict_in_generate=True,
        output_scores=True,
        pad_token_id=EOS_ID,
        **options,
    )
    continuations = found.sequences[:, input_ids.shape[1] :].tolist()
    return list(zip(continuations, found.sequences_scores.tolist(), strict=True))


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("width", [2, 4])
def test_where_nothing_ends_the_beams_are_the_same(llm: LLM, model: Any, prompt: str, width: int) -> None:
    params = BeamSearchParams(beam_width=width, max_tokens=8, ignore_eos=True)
    (output,) = llm.beam_search(prompt, params)
    expected = search(model, prompt, num_beams=width, max_new_tokens=8, min_new_tokens=8, eos_token_id=None)
    assert [item.token_ids for item in output.outputs] == [token_ids for token_ids, _ in expected]
    for item, (_, score) in zip(output.outputs, expected, strict=True):
        assert item.cumulative_logprob == pytest.approx(8 * score, rel=1e-4)


@pytest.mark.parametrize("length_penalty", [0.0, 2.0])
def test_an_end_and_a_length_penalty_mean_the_same(llm: LLM, model: Any, length_penalty: float) -> None:
    """Compared by the score of the best, for ``transformers`` keeps fewer of those that ended."""
    params = BeamSearchParams(beam_width=4, max_tokens=6, length_penalty=length_penalty)
    (output,) = llm.beam_search("abc", params)
    expected = search(
        model, "abc", num_beams=4, max_new_tokens=6, length_penalty=length_penalty, early_stopping="never"
    )
    best = output.outputs[0]
    assert best.cumulative_logprob is not None
    score = best.cumulative_logprob / len(best.token_ids) ** length_penalty
    assert score >= expected[0][1] - 1e-4


def test_several_searches_share_steps_and_find_what_each_finds_alone(llm: LLM) -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=10)
    together = llm.beam_search(PROMPTS, params)
    for prompt, output in zip(PROMPTS, together, strict=True):
        (alone,) = llm.beam_search(prompt, params)
        assert [item.token_ids for item in alone.outputs] == [item.token_ids for item in output.outputs]
        assert [item.cumulative_logprob for item in alone.outputs] == [
            item.cumulative_logprob for item in output.outputs
        ]
