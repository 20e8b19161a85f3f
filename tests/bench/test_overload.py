"""The benchmark of overload runs from end to end, and tells what became of each request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench.offer import Answer
from bench.overload import main, summary


def test_a_row_tells_refusals_from_what_should_not_be() -> None:
    answers = [
        Answer(0.0, 200, None, [1.0, 2.0], 2.0, is_whole=True),
        Answer(0.0, 200, None, [1.0], 1.0),
        Answer(0.0, 429, "3", [], 0.004),
        Answer(0.0, 429, None, [], 0.004),
        Answer(0.0, 0),
    ]
    row = summary("overload", answers, 2.0)
    assert (row["accepted"], row["refused"], row["others"]) == (1, 1, 3)
    assert (row["offered/s"], row["latency_p99"], row["refusal_max_ms"]) == (2.5, 2.0, 4.0)


@pytest.mark.slow
def test_what_is_taken_is_answered_and_the_rest_refused(
    tmp_path: Path, byte_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.json"
    load = ["--factor", "10", "--seconds", "2", "--slots", "2", "--queue", "1", "--max-tokens", "40"]
    load += ["--levelling", "4"]
    assert main(["--model", str(byte_model), "--paced", *load, "--json", str(output)]) == 0
    full, overload, after = json.loads(output.read_text())["rows"]
    assert [row["part"] for row in (full, overload, after)] == ["full", "overload", "after"]
    assert full["refused"] == after["refused"] == 0
    assert full["accepted"] == after["accepted"] == 8
    assert overload["refused"] > overload["accepted"] > 2
    assert len(overload["rss_all"]) > 2
    assert 0 < overload["loop_cpu"] <= overload["server_cpu"] + 0.02
    assert overload["client_cpu"] > 0
    assert "refusal_p99_ms" in capsys.readouterr().out
