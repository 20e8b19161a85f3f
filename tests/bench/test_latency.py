from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import FakeRunner, fake_core

from bench import latency
from triolet.args import EngineArgs
from triolet.core.engine_core import EngineCore
from triolet.llm_engine import LLMEngine

OpenEngine = Callable[[EngineArgs], LLMEngine]


@pytest.fixture
def cores() -> list[EngineCore]:
    """Those of the engines opened."""
    return []


@pytest.fixture
def open_engine(byte_model: Path, cores: list[EngineCore], monkeypatch: pytest.MonkeyPatch) -> OpenEngine:
    """Engines that spell the alphabet, whatever model is asked for."""
    monkeypatch.setattr(latency, "_VOCABULARY", range(256))

    def open_engine(args: EngineArgs) -> LLMEngine:
        cores.append(fake_core(FakeRunner(max_model_len=512), args))
        core_factory: Any = lambda *_: cores[-1]  # noqa: E731
        return LLMEngine(EngineArgs(model=str(byte_model)), core_factory=core_factory)

    return open_engine


def test_a_prefix_is_asked_for_cold_and_warm(open_engine: OpenEngine, cores: list[EngineCore]) -> None:
    with open_engine(EngineArgs()) as engine:
        row = latency.run_prefix(engine, count(1), prefix_tokens=64, suffix_tokens=4, num_rounds=3)
        statistics = cores[0].statistics()
    assert statistics.num_prefix_queries == 6 * 68
    assert statistics.num_prefix_hits == 3 * 64
    assert row["ratio"] == row["ttft_warm"] / row["ttft_cold"]


def test_what_warmed_an_engine_up_warms_no_prefix(open_engine: OpenEngine, cores: list[EngineCore]) -> None:
    with open_engine(EngineArgs()) as engine:
        latency.run_prefix_after_warm_up(engine, prefix_tokens=128, suffix_tokens=4, num_rounds=3)
        statistics = cores[0].statistics()
    assert statistics.num_prefix_hits == 64 + 3 * 128, "each second time, and no other"


@pytest.mark.parametrize(("threshold", "num_steps"), [(0, 1), (50, 8)])
def test_a_long_prompt_takes_as_many_steps_as_its_limit_says(
    open_engine: OpenEngine, threshold: int, num_steps: int
) -> None:
    with open_engine(EngineArgs(long_prefill_token_threshold=threshold)) as engine:
        row = latency.run_interference(
            engine, threshold=threshold, num_streams=2, prompt_tokens=400, num_steps=5
        )
        assert not engine.has_unfinished_requests()
    assert (row["num_steps_alone"], row["num_steps_beside"]) == (5, num_steps)
    assert row["ratio_p99"] == row["beside_p99"] / row["alone_p99"]


def test_the_program_writes_its_rows(
    open_engine: OpenEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("triolet.llm_engine.LLMEngine", open_engine)
    path = tmp_path / "rows.json"
    lengths = ["--rounds", "1", "--prefix-tokens", "64", "--prompt-tokens", "200", "--steps", "3"]
    assert latency.main([*lengths, "--thresholds", "0", "32", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [row["scenario"] for row in rows] == ["prefix", "interference", "interference"]
    assert "ratio_p99" in capsys.readouterr().out
