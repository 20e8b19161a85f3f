"""Counting instructions: what is compared, and one count of the real thing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from bench.instructions import compare, count_instructions
from tests.kernels.cpu.variants import build_if_missing, runs

from bench import instructions
from triolet_kernels.cpu.loader import LIBRARY_PATH


def test_changes_are_relative_to_what_was_stored() -> None:
    rows = compare({"a": 100, "b": 200}, {"a": 103, "b": 150, "c": 7})
    assert [row["change"] for row in rows] == [0.03, -0.25, None]


@pytest.mark.parametrize(
    ("count", "compiler", "code"), [(101, "g++ 1", 0), (103, "g++ 1", 1), (103, "g++ 2", 0)]
)
def test_the_command_fails_for_growth_under_the_same_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    count: int, compiler: str, code: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(instructions, "count_instructions", lambda _library: {"a call": count})
    monkeypatch.setattr(instructions, "_compiler", lambda: compiler)
    stored = tmp_path / "stored.json"
    stored.write_text(json.dumps({"compiler": "g++ 1", "counts": {"a call": 100}}))
    assert instructions.main(["--stored", str(stored)]) == code
    assert ("more instructions" in capsys.readouterr().out) == bool(code)
    assert instructions.main(["--stored", str(stored), "--write"]) == 0
    assert json.loads(stored.read_text()) == {"compiler": compiler, "counts": {"a call": count}}


@pytest.mark.slow
def test_callgrind_counts_every_call() -> None:
    build_if_missing()
    if not shutil.which("valgrind") or not runs("avx2"):
        pytest.skip("needs valgrind, and a CPU with AVX2")
    counts = count_instructions(LIBRARY_PATH)
    assert len(counts) > 5
    assert all(count > 10_000 for count in counts.values())
    assert counts["linear, 8 rows"] < 8 * counts["linear, 1 row"]
