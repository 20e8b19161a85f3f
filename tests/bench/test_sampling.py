"""The sampling benchmark measures every kind, and runs from end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench.sampling import KINDS, main, measure

from triolet_kernels.reference import ReferenceOps


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_measured_with_each_implementation(kind: str) -> None:
    row = measure({"one": ReferenceOps(), "other": ReferenceOps()}, kind, 2, 300, seconds=0.001)
    assert (row["kind"], row["rows"]) == (kind, 2)
    assert row["one"] >= 0
    assert row["other"] >= 0


def test_the_command_prints_a_table_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.json"
    options = ["--rows", "1", "--threads", "1", "--seconds", "0.001", "--vocabulary", "200", "--json"]
    assert main([*options, str(output)]) == 0
    assert [row["kind"] for row in json.loads(output.read_text())["rows"]] == list(KINDS)
    assert "reference ms" in capsys.readouterr().out
