from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import FakeRunner, fake_core

from bench import speculation
from triolet.args import EngineArgs
from triolet.llm_engine import LLMEngine


def test_prompts_differ_from_the_first_word_on() -> None:
    for workload in speculation.WORKLOADS:
        prompts = speculation.make_prompts(workload, 8, 3)
        assert len({prompt[:12] for prompt in prompts}) == 8
        assert prompts == speculation.make_prompts(workload, 8, 3)


def test_a_row_tells_speed_steps_and_acceptance(byte_model: Path) -> None:
    core = fake_core(FakeRunner(max_model_len=512), EngineArgs())
    with LLMEngine(EngineArgs(model=str(byte_model)), core_factory=lambda *_: core) as engine:
        run = partial(speculation.run_batch, engine, core, batch=2, max_tokens=6)
        row = run(workload="repetitive", index=1)
    assert row["decode_tokens_per_s"] > 0
    assert row["tokens_per_step"] == pytest.approx(1.0)
    assert row["acceptance"] == 0.0


def test_the_program_writes_its_rows(
    byte_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load_fake(args: EngineArgs, *_: Any) -> Any:
        return fake_core(FakeRunner(max_model_len=512), args)

    monkeypatch.setattr("triolet.core.engine_core.load_core", load_fake)
    path = tmp_path / "rows.json"
    options = ["--batch", "1", "--max-tokens", "4", "--rounds", "1", "--kinds", "--model", str(byte_model)]
    assert speculation.main([*options, "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [(row["workload"], row["speculation"]) for row in rows] == [
        ("repetitive", "off"),
        ("hostile", "off"),
    ]
    assert "tokens_per_step" in capsys.readouterr().out
