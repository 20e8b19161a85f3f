"""The same request gives the same tokens and log probabilities, bit for bit, however it is served.

Every combination of a model, a configuration of the engine and a way of asking is compared with the same
questions asked one by one of a plain engine of the same model, number format and instructions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.integration.determinism import (
    CONFIGURATIONS,
    STREAMS,
    SUBJECTS,
    WAYS,
    Answer,
    Question,
    Session,
    Subject,
    alone,
    make_questions,
)
from tests.kernels.cpu.variants import build_if_missing, runs

from triolet import Engine
from triolet.core.engine_core import EngineCore
from triolet.llm_engine import LLMEngine

pytestmark = [pytest.mark.slow, pytest.mark.model]

MAX_MODEL_LEN = 160


class Bench:
    """A subject on disk, its questions, and the answers a plain engine gives to each of them alone."""

    def __init__(self, subject: Subject, folder: Path) -> None:
        self.subject = subject
        self.path = subject.find(folder)
        self.questions = make_questions(subject.vocab_size)
        with self.engine() as engine:
            self.expected = alone(Session(engine), self.questions)

    def options(self, **options: Any) -> dict[str, Any]:
        defaults = {"num_threads": 1, "num_kv_blocks": 64, "max_model_len": MAX_MODEL_LEN}
        formats = {"dtype": self.subject.dtype, "kv_cache_dtype": self.subject.kv_cache_dtype}
        return {"model": str(self.path)} | formats | defaults | options

    def engine(self, **options: Any) -> LLMEngine:
        return LLMEngine(**self.options(**options))


@pytest.fixture(scope="module", params=SUBJECTS)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    build_if_missing()
    subject = SUBJECTS[request.param]
    if subject.isa and not runs(subject.isa):
        pytest.skip(f"this CPU does not run {subject.isa}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "TRIOLET_CPU_ISA", subject.isa)
        yield Bench(subject, tmp_path_factory.mktemp(request.param) / "model")


@pytest.fixture(scope="module", params=CONFIGURATIONS)
def engine(request: pytest.FixtureRequest, bench: Bench) -> Iterator[LLMEngine]:
    with bench.engine(**CONFIGURATIONS[request.param]) as engine:
        yield engine


def check(actual: Sequence[Answer], bench: Bench) -> None:
    for index, (answer, expected) in enumerate(zip(actual, bench.expected, strict=True)):
        assert answer == expected, f"question {index}: {bench.questions[index].params}"


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_company(
    bench: Bench, engine: LLMEngine, way: Callable[[Session, Sequence[Question]], list[Answer]]
) -> None:
    check(way(Session(engine), bench.questions), bench)


@pytest.mark.anyio
@pytest.mark.parametrize("way", STREAMS.values(), ids=STREAMS)
async def test_streams(bench: Bench, way: Callable[[Engine, Sequence[Question]], Any]) -> None:
    async with Engine(**bench.options()) as engine:
        check(await way(engine, bench.questions), bench)


def test_answers_are_worth_comparing(bench: Bench) -> None:
    """They differ among each other, and have all that was asked for."""
    assert len({str(answer.token_ids) for answer in bench.expected}) >= 8
    for question, answer in zip(bench.questions, bench.expected, strict=True):
        assert [len(ids) for ids in answer.token_ids] == [question.params.max_tokens] * question.params.n
        assert bool(answer.logprobs[0]) == (question.params.logprobs is not None)
        assert bool(answer.prompt_logprobs) == (question.params.prompt_logprobs is not None)


def test_few_blocks_preempt_and_prefixes_are_found(bench: Bench) -> None:
    """The configurations do what they are there for."""
    with bench.engine(**CONFIGURATIONS["few blocks"]) as engine:
        WAYS["together"](Session(engine), bench.questions)
        assert isinstance(engine._core, EngineCore)
        assert engine._core.statistics().num_preemptions > 0
    with bench.engine() as engine:
        for _ in range(2):
            WAYS["together"](Session(engine), bench.questions)
        assert isinstance(engine._core, EngineCore)
        assert engine._core.statistics().num_prefix_hits > 0
