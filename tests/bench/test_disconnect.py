"""The benchmark of clients that leave runs from end to end, with an engine that computes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench.disconnect import BUCKETS_MS, histogram, main


def test_the_histogram_counts_each_once() -> None:
    rows = histogram([0.0, 0.0004, 0.0025, 9.0])
    assert [bound for bound, _ in rows] == [*BUCKETS_MS, None]
    assert {bound: count for bound, count in rows if count} == {0.0: 1, 0.5: 1, 3.0: 1, None: 1}


@pytest.mark.slow
def test_the_command_prints_a_table_and_writes_json(
    tmp_path: Path, byte_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.json"
    phases = ["queued", "prefill", "decoding", "between tokens"]  # calls need a model that writes them
    arguments = ["--model", str(byte_model), "--paced", "--rounds", "3", "--json", str(output)]
    assert main([*arguments, "--phases", *phases]) == 0
    rows = json.loads(output.read_text())["rows"]
    assert [row["phase"] for row in rows] == phases
    for row in rows:
        assert row["num_left"] == sum(count for _, count in row["cancel_histogram"]) == 3
        assert row["seen_max_ms"] >= row["cancel_p50_ms"] * (row["phase"] != "queued")
    assert "cancel_p99_ms" in capsys.readouterr().out
