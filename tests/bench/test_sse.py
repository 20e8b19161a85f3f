"""The benchmark of HTTP runs from end to end over a real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench.sse import main


@pytest.mark.slow
def test_the_command_prints_a_table_and_writes_json(
    tmp_path: Path, byte_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.json"
    lengths = ["--streams", "4", "--tokens", "20", "--requests", "8", "--rounds", "1"]
    arguments = ["--model", str(byte_model), "--backends", "asyncio", "--json", str(output)]
    assert main([*arguments, *lengths]) == 0
    rows = json.loads(output.read_text())["rows"]
    assert [row["loop"] for row in rows] == ["asyncio"]
    assert all(row["num_events"] <= 4 * 21 for row in rows)
    assert all(row["events/token"] == row["num_events"] / (4 * 20) for row in rows)
    assert "us/event" in capsys.readouterr().out
