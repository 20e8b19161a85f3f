"""Guessing at tokens changes no token and no log-probability, on a real model through the whole engine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from triolet import SamplingParams
from triolet.args import EngineArgs, Speculation
from triolet.core.engine_core import EngineCore, load_core
from triolet.llm_engine import LLMEngine
from triolet.request import RequestOutput
from triolet.statistics import SchedulerStatistics

pytestmark = [pytest.mark.model, pytest.mark.slow]

CODE = "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n"
PROMPTS = [
    f"Repeat this code:\n{CODE}{CODE}\n# again:\n",
    "1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2,",
    "The capital of France is",
]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=20, logprobs=2, ignore_eos=True),
    SamplingParams(temperature=0.7, top_p=0.9, seed=11, max_tokens=20, logprobs=2),
    SamplingParams(temperature=0.0, frequency_penalty=0.5, repetition_penalty=1.1, max_tokens=20, logprobs=2),
    SamplingParams(temperature=1.0, min_p=0.05, seed=12, max_tokens=20, stop=["return a -"]),
]

PLAIN = [
    SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=0.7, top_p=0.9, seed=11, max_tokens=20),
]
"""Those of which nothing is asked but to draw tokens, which a step's program does by itself."""

Answers = list[tuple[list[int], Any, Any, str]]


def answers(
    model: Path, speculation: Speculation, params: Sequence[SamplingParams] = PARAMS
) -> tuple[Answers, SchedulerStatistics]:
    """What all prompts give with all parameters, in one batch; and what the engine counted."""
    args = EngineArgs(
        model=str(model),
        speculation=speculation,
        draft_model=str(model)
        if speculation == "draft"
        else None,  # its own, so nearly all guesses are right
        num_speculative_tokens=5,
        num_threads=1,
        max_model_len=256,
        seed=1,
    )
    cores: list[EngineCore] = []

    def keep_core(*arguments: Any) -> EngineCore:
        cores.append(load_core(*arguments))
        return cores[-1]

    outputs: dict[str, RequestOutput] = {}
    with LLMEngine(args, core_factory=keep_core) as engine:
        for number, (prompt, one) in enumerate(product(PROMPTS, params)):
            engine.add_request(str(number), prompt, one)
        while engine.has_unfinished_requests():
            outputs |= {output.request_id: output for output in engine.step()}
        statistics = cores[0].statistics()
    choices = [outputs[str(number)].outputs[0] for number in range(len(outputs))]
    return [
        (choice.token_ids, choice.logprobs, choice.finish_reason, choice.text) for choice in choices
    ], statistics


@pytest.fixture(scope="module")
def without(smollm2_path: Path) -> Answers:
    return answers(smollm2_path, "off")[0]


@pytest.mark.parametrize("speculation", ["ngram", "suffix", "draft"])
def test_guesses_change_nothing(smollm2_path: Path, without: Answers, speculation: Speculation) -> None:
    given, statistics = answers(smollm2_path, speculation)
    assert given == without
    assert 10 < statistics.num_accepted_tokens <= statistics.num_draft_tokens


def test_nor_do_they_where_tokens_are_only_drawn(smollm2_path: Path) -> None:
    given, statistics = answers(smollm2_path, "suffix", PLAIN)
    assert given == answers(smollm2_path, "off", PLAIN)[0]
    assert 10 < statistics.num_accepted_tokens <= statistics.num_draft_tokens
