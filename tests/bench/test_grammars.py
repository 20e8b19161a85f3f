"""What grammars cost is measured on the real code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench.grammars import PROMPTS, SAMPLING, SPECS, main

pytestmark = pytest.mark.model


def test_costs_are_those_of_real_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.json"
    options = ["--batch", "2", "--tokens", "3", "--threads", "1", "--only", "regex of digits"]
    assert main(["--model", "smollm2-135m-instruct", *options, "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [row["sampling"] for row in rows] == list(SAMPLING)
    assert all(row["step_ms"] > 0 for row in rows)
    assert rows[0]["masked_percent"] < 50 < rows[2]["masked_percent"]
    assert "share_percent" in capsys.readouterr().out


def test_every_grammar_has_a_prompt() -> None:
    assert PROMPTS.keys() == SPECS.keys()
