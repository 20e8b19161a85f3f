"""The wire benchmark measures every message, and runs from end to end."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from bench.wire import MESSAGES, main, measure_message


@pytest.mark.parametrize("name", MESSAGES)
def test_each_message_is_measured(name: str) -> None:
    row = measure_message(name, 1)
    assert row["message"] == name
    assert row["bytes"] > 0
    assert row["both us"] > 0


def test_the_command_prints_tables_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    output = tmp_path / "out.json"
    assert main(["--calls", "1", "--round-trips", "2", "--json", str(output)]) == 0
    rows = json.loads(output.read_text())["rows"]
    assert [row["message"] for row in rows] == [*MESSAGES, *2 * ["64 tokens", "small"]]
    assert "p99 us" in capsys.readouterr().out
