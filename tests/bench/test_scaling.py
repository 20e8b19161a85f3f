"""The scaling benchmark counts right, and runs from end to end over real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bench.scaling import LONGEST, SHAPES, MixedLoad, busy_seconds, imbalance, main, processor_seconds

BURN = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
print(child.pid, flush=True)
sys.stdin.read()
child.kill()
child.wait()
"""


def test_imbalance_is_the_difference_as_a_share_of_the_mean() -> None:
    assert imbalance([1.1, 0.9]) == pytest.approx(0.2)
    assert imbalance([1.0, 1.0, 4.0]) == pytest.approx(1.5)


def test_busy_seconds_are_those_of_each_rank_in_order() -> None:
    page = "\n".join(
        f'triolet_step_duration_seconds_{kind}{{model_name="m",engine="{rank}"}} {value}'
        for kind, rank, value in (("sum", 10, 3.5), ("sum", 0, 1.25), ("count", 0, 9), ("sum", 1, 2))
    )
    assert busy_seconds(page) == [1.25, 2.0, 3.5]


def test_mixed_lengths_are_the_same_for_an_index_and_differ() -> None:
    load = MixedLoad(url="http://x/v1", model="m", max_tokens=LONGEST["answer"])
    lengths = [load.path_and_body(index)[1]["max_tokens"] for index in range(50)]
    assert lengths == [load.path_and_body(index)[1]["max_tokens"] for index in range(50)]
    assert len(set(lengths)) > 20
    assert max(lengths) <= LONGEST["answer"]


def test_the_time_of_children_is_counted_by_process() -> None:
    command = [sys.executable, "-c", BURN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        deadline = time.monotonic() + 30
        while processor_seconds(process.pid)[child] < 0.1 and time.monotonic() < deadline:
            pass
        used = processor_seconds(process.pid)
        process.communicate()
    assert set(used) == {process.pid, child}
    assert used[child] >= 0.1


@pytest.mark.slow
def test_the_command_prints_tables_and_writes_json(
    byte_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    output = tmp_path / "out.json"
    shapes = ["one process", "DP 2"]
    sizes = ["--rounds", "1", "--requests", "4", "--clients", "2", "--prompt-words", "2", "--max-tokens", "4",
             "--mixed-requests", "8", "--waves", "2", "--longest-answer", "8"]  # fmt: skip
    code = main(["--model", str(byte_llama), "--shapes", *shapes, *sizes, "--json", str(output)])
    said = capsys.readouterr()
    assert code == 0, said.err
    rows = json.loads(output.read_text())["rows"]
    assert [row.get("shape", row.get("arrival")) for row in rows] == [*shapes, "steady", "waves"]
    assert rows[0]["x one process"] == 1.0
    assert rows[0]["of it engines"] == 0.0
    assert rows[1]["output_tokens"] == 16
    assert "imbalance %" in said.out
    assert set(shapes) <= set(SHAPES)
