"""``LLM`` over engine processes of its own: the same words, the cause of a death, nothing left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.leaks.census import child_processes

from triolet import LLM, SamplingParams
from triolet.errors import EngineDeadError, InvalidRequestError, ModelLoadError

PROMPTS = ["one", "two and a little more", "three"]
SAMPLED = SamplingParams(max_tokens=12, temperature=0.9, seed=5, n=2, ignore_eos=True)
OPTIONS: dict[str, Any] = {"num_threads": 1, "num_kv_blocks": 64, "kernels": "reference"}


def said(llm: LLM) -> list[list[str]]:
    outputs = llm.generate(PROMPTS, SAMPLED, use_tqdm=False)
    return [[one.text for one in output.outputs] for output in outputs]


def engines(before: set[int]) -> list[int]:
    return sorted(child_processes() - before)


@pytest.fixture
def before() -> set[int]:
    return set(child_processes())


@pytest.fixture(params=[{"separate_engine": True}, {"data_parallel_size": 2}])
def llm(request: pytest.FixtureRequest, byte_llama: Path, before: set[int]) -> Iterator[LLM]:
    with LLM(str(byte_llama), **OPTIONS, **request.param) as llm:
        yield llm
    assert engines(before) == []


@pytest.mark.slow
def test_the_words_are_those_of_one_process_also_after_an_engine_was_killed(
    llm: LLM, byte_llama: Path, before: set[int]
) -> None:
    with LLM(str(byte_llama), **OPTIONS) as alone:
        expected = said(alone)
    assert said(llm) == expected
    with pytest.raises(InvalidRequestError, match="another process"):
        llm.generate("x", SAMPLED.replace(logits_processors=(lambda ids, logits: logits,)), use_tqdm=False)
    killer = KillOnFirstToken(engines(before))
    endless = SamplingParams(max_tokens=200, ignore_eos=True, stop_criteria=(killer,), seed=1)
    with pytest.raises(EngineDeadError, match="killed by SIGKILL"):
        llm.generate(PROMPTS, endless, use_tqdm=False)
    assert said(llm) == expected
    interrupted = SAMPLED.replace(stop_criteria=(interrupt,))
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, interrupted, use_tqdm=False)
    assert said(llm) == expected


class KillOnFirstToken:
    """Kills all engines once something has come of a request; it never stops one."""

    def __init__(self, pids: list[int]) -> None:
        self.pids = pids

    def __call__(self, *_: Any) -> bool:
        while self.pids:
            os.kill(self.pids.pop(), signal.SIGKILL)
        return False


def interrupt(*_: Any) -> bool:
    raise KeyboardInterrupt


def test_a_model_that_cannot_be_loaded_is_told_and_leaves_nothing(byte_model: Path, before: set[int]) -> None:
    with pytest.raises(ModelLoadError):  # its weights are an empty file
        LLM(str(byte_model), separate_engine=True)
    assert engines(before) == []
