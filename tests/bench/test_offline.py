from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bench.random_model import RANDOM_MODELS, Layout
from tests.fakes import FakeRunner, fake_core
from tests.triolet.models.model_files import write_gguf
from tests.triolet.text.test_gguf_tokenizer import scored_metadata

from bench import offline
from triolet.args import EngineArgs
from triolet.llm_engine import LLMEngine

OpenEngine = Callable[[EngineArgs], LLMEngine]


@pytest.fixture
def open_engine(byte_model: Path) -> OpenEngine:
    """Engines that spell the alphabet, whatever model is asked for."""

    def open_engine(args: EngineArgs) -> LLMEngine:
        core_factory: Any = lambda args, *_: fake_core(FakeRunner(max_model_len=512), args)  # noqa: E731
        return LLMEngine(EngineArgs(model=str(byte_model)), core_factory=core_factory)

    return open_engine


def test_a_batch_counts_every_token(open_engine: OpenEngine) -> None:
    with open_engine(EngineArgs()) as engine:
        run = partial(offline.run_batch, engine, prompt_words=4, prompt_index=7)
        row = run(batch=3, max_tokens=5)
        prompt_only = run(batch=2, max_tokens=1)
    assert (row["batch"], row["output_tokens"]) == (3, 15)
    assert row["prompt_tokens"] > 3 * 4
    assert row["prefill_tokens_per_s"] > 0
    assert row["decode_tokens_per_s"] > 0
    assert prompt_only["decode_tokens_per_s"] == 0.0


def test_the_program_writes_its_rows(
    open_engine: OpenEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("triolet.llm_engine.LLMEngine", open_engine)
    path = tmp_path / "rows.json"
    lengths = ["--prompt-words", "4", "--max-tokens", "6"]
    assert offline.main(["--batch", "1", "2", *lengths, "--json", str(path)]) == 0
    assert [row["output_tokens"] for row in json.loads(path.read_text())["rows"]] == [6, 12]
    assert "decode_tokens_per_s" in capsys.readouterr().out


def test_a_sweep_goes_as_far_as_the_context(
    open_engine: OpenEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = offline.sweep_shapes(max_model_len=8192, max_tokens=128)
    assert (64, 64) in shapes
    assert (8, 7900) in shapes
    assert max(words for _, words in offline.sweep_shapes(max_model_len=2048, max_tokens=128)) == 512
    monkeypatch.setattr("triolet.llm_engine.LLMEngine", open_engine)
    monkeypatch.setattr(offline, "sweep_shapes", lambda *_: [(1, 2), (2, 2), (1, 8)])
    path = tmp_path / "sweep.svg"
    assert offline.main(["--sweep", "--max-tokens", "4", "--plot", str(path)]) == 0
    assert path.stat().st_size > 0


def test_a_random_model_is_run_beside_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = write_gguf(tmp_path / "t.gguf", metadata=scored_metadata(), tensors={})
    monkeypatch.setitem(RANDOM_MODELS, "tiny", Layout(1, 64, 96, 4, 2, "Q4_0", "Q8_0"))
    monkeypatch.setattr(offline, "_SECONDS_OF_CEILINGS", 0.01)
    path = tmp_path / "rows.json"
    arguments = ["--random", "tiny", "--model", str(tokenizer), "--limit", "--json", str(path)]
    assert offline.main([*arguments, "--batch", "1", "--prompt-words", "4", "--max-tokens", "6"]) == 0
    [row] = json.loads(path.read_text())["rows"]
    assert row["output_tokens"] == 6
    assert row["share"] == pytest.approx(row["decode_tokens_per_s"] / row["limit_tokens_per_s"])
    assert "limit_tokens_per_s" in capsys.readouterr().out
