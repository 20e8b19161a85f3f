from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import FakeRunner, fake_core

from bench import grammars
from triolet.args import EngineArgs
from triolet.llm_engine import LLMEngine


def fake_engine(byte_model: Path) -> LLMEngine:
    core_factory: Any = lambda args, *_: fake_core(FakeRunner(max_model_len=512), args)  # noqa: E731
    return LLMEngine(EngineArgs(model=str(byte_model)), core_factory=core_factory)


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("name", grammars.SPECS)
def test_every_kind_of_grammar_can_be_followed(name: str, is_masked: bool, byte_model: Path) -> None:
    with fake_engine(byte_model) as engine:
        seconds = grammars.measure(engine, grammars.SPECS[name], batch=2, num_steps=30, is_masked=is_masked)
    assert len(seconds) == 30
    assert min(seconds) > 0


def test_the_program_writes_its_rows(
    byte_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("triolet.LLMEngine", lambda args: fake_engine(byte_model))
    path = tmp_path / "rows.json"
    assert grammars.main(["--batch", "2", "--steps", "3", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [row["grammar"] for row in rows] == list(grammars.SPECS)
    assert "json schema" in capsys.readouterr().out
