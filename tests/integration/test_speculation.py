"""Guessing at tokens changes no token and no log-probability, on a real model through the whole engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from triolet import LLM, SamplingParams
from triolet.args import EngineArgs, Speculation
from triolet.core.engine_core import EngineCore, load_core
from triolet.llm_engine import LLMEngine

pytestmark = [pytest.mark.model, pytest.mark.slow]

CODE = "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n"
PROMPTS = [
    f"Repeat this code:\n{CODE}{CODE}\n# again:\n",
    "1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2,",
    "The capital of France is",
]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=32, logprobs=2, ignore_eos=True),
    SamplingParams(temperature=0.7, top_p=0.9, seed=11, max_tokens=32, logprobs=2),
    SamplingParams(temperature=0.0, frequency_penalty=0.5, repetition_penalty=1.1, max_tokens=32, logprobs=2),
    SamplingParams(temperature=1.0, min_p=0.05, seed=12, max_tokens=32, stop=["return a -"]),
]

Answers = list[tuple[list[int], Any, Any, str]]


def answers(model: Path, speculation: Speculation) -> Answers:
    """What all prompts give with all parameters, in one batch."""
    jobs = [(prompt, params) for params in PARAMS for prompt in PROMPTS]
    draft_model = str(model) if speculation == "draft" else None  # its own, so nearly all guesses are right
    with LLM(
        model=str(model),
        speculation=speculation,
        draft_model=draft_model,
        num_speculative_tokens=5,
        num_threads=2,
        max_model_len=256,
        seed=1,
    ) as llm:
        outputs = llm.generate([prompt for prompt, _ in jobs], [params for _, params in jobs])
    return [
        (choice.token_ids, choice.logprobs, choice.finish_reason, choice.text)
        for choice in (output.outputs[0] for output in outputs)
    ]


@pytest.fixture(scope="module")
def without(smollm2_path: Path) -> Answers:
    return answers(smollm2_path, "off")


@pytest.mark.parametrize("speculation", ["ngram", "suffix", "draft"])
def test_guesses_change_nothing(smollm2_path: Path, without: Answers, speculation: Speculation) -> None:
    assert answers(smollm2_path, speculation) == without


@pytest.mark.parametrize("speculation", ["ngram", "suffix"])
def test_a_text_that_repeats_itself_takes_fewer_steps(smollm2_path: Path, speculation: Speculation) -> None:
    cores: list[EngineCore] = []

    def keep_core(*arguments: Any) -> EngineCore:
        cores.append(load_core(*arguments))
        return cores[-1]

    args = EngineArgs(model=str(smollm2_path), speculation=speculation, num_threads=2)
    params = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
    with LLMEngine(args, core_factory=keep_core) as engine:
        engine.add_request("0", PROMPTS[1], params)
        num_steps = 0
        while engine.has_unfinished_requests():
            engine.step()
            num_steps += 1
        statistics = cores[0].statistics()
    assert num_steps < 40
    assert 64 - num_steps <= statistics.num_accepted_tokens <= statistics.num_draft_tokens
