from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench.speculation import Load
from tests.fakes import FakeRunner, fake_core, write_byte_model

from bench import speculation
from triolet.args import EngineArgs
from triolet.llm_engine import LLMEngine

CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def test_prompts_differ_from_the_first_word_on() -> None:
    for make in speculation.PROMPTS.values():
        prompts = [make(index) for index in range(8)]
        assert len({prompt[:12] for prompt in prompts}) == 8
        assert prompts == [make(index) for index in range(8)]


@pytest.mark.parametrize("workload", ["words", "chat"])
def test_a_row_tells_speed_steps_and_what_was_guessed(workload: str, tmp_path: Path) -> None:
    path = write_byte_model(tmp_path, chat_template=CHAT_TEMPLATE)
    core = fake_core(FakeRunner(max_model_len=1024), EngineArgs())
    load = Load(workload=workload, temperature=0.0, batch=2, num_requests=5, max_tokens=6, index=40)
    with LLMEngine(EngineArgs(model=str(path)), core_factory=lambda *_: core) as engine:
        row = speculation.run_load(engine, core, load)
    assert core.core_statistics().num_generated_tokens == 30
    assert row["output_tokens_per_s"] > 0
    assert 0 < row["tokens_per_step"] <= 1
    assert (row["share_guessed"], row["num_draft_tokens"], row["acceptance"]) == (0.0, 0, 0.0)


def test_the_program_writes_its_rows(
    byte_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load_fake(args: EngineArgs, *_: Any) -> Any:
        return fake_core(FakeRunner(max_model_len=1024), args)

    monkeypatch.setattr("triolet.core.engine_core.load_core", load_fake)
    path = tmp_path / "rows.json"
    options = ["--batch", "1", "--max-tokens", "4", "--rounds", "1", "--kinds", "--model", str(byte_model)]
    choice = ["--workload", "words", "hostile", "--temperature", "0.5"]
    assert speculation.main([*options, *choice, "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [(row["workload"], row["temperature"], row["speculation"]) for row in rows] == [
        ("words", 0.5, "off"),
        ("hostile", 0.5, "off"),
    ]
    assert "tokens_per_step" in capsys.readouterr().out
