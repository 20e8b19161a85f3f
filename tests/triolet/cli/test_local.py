from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.fakes import FakeRunner, fake_core

from triolet.args import EngineArgs
from triolet.cli import main
from triolet.cli.local import LocalModel
from triolet.errors import EngineGenerateError, InvalidRequestError
from triolet.llm_engine import LLMEngine
from triolet.plan import StepPlan


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


@pytest.fixture
def model(byte_model: Path, runner: FakeRunner) -> Iterator[LocalModel]:
    factory = partial(fake_core, runner)
    with LLMEngine(model=str(byte_model), core_factory=lambda args, *_: factory(args)) as engine:
        yield LocalModel(engine)


def test_text_comes_in_pieces(model: LocalModel) -> None:
    assert "".join(model.complete("abc", {"max_tokens": 4})) == "defg"
    pieces = model.chat([{"role": "user", "content": "x"}], {"max_tokens": 3})
    assert [len(piece) for piece in pieces] == [1, 1, 1]


def test_an_answer_left_early_makes_room_for_the_next(model: LocalModel) -> None:
    pieces = model.complete("abc", {"max_tokens": 400})
    assert next(pieces) == "d"
    pieces.close()
    assert "".join(model.complete("abc", {"max_tokens": 2})) == "de"


def test_a_request_that_fails_raises(model: LocalModel, runner: FakeRunner) -> None:
    def fail(plan: StepPlan) -> None:
        raise RuntimeError("a kernel failed")

    runner.fail = fail
    with pytest.raises(EngineGenerateError, match="a kernel failed"):
        list(model.complete("abc", {}))
    with pytest.raises(InvalidRequestError, match="temperature"):
        list(model.complete("abc", {"temperature": 9.0}))


def test_offline_takes_the_engines_options(
    byte_model: Path,
    runner: FakeRunner,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    opened: list[EngineArgs] = []

    def open_engine(args: EngineArgs) -> LLMEngine:
        opened.append(args)
        return LLMEngine(args, core_factory=lambda args, *_: fake_core(runner, args))

    monkeypatch.setattr("triolet.llm_engine.LLMEngine", open_engine)
    arguments = ["complete", "abc", "--offline", "--model", str(byte_model), "--max-tokens", "3"]
    assert main([*arguments, "--max-num-seqs", "1"]) == 0
    assert capsys.readouterr().out == "def\n"
    assert opened == [EngineArgs(model=str(byte_model), max_num_seqs=1)]
    assert runner.is_closed
