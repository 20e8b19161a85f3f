from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from bench.gpu_parts import run_apart
from bench.gpu_timing import Budget, Figures

from bench import gpu_parts

PART = """
import json, os, sys
name, path = sys.argv[1:]
row = {"section": name, "case": "-", "value": 1.0, "unit": "s", "share": None, "goal": None, "verdict": ""}
open(path, "w").write(json.dumps({"rows": [row], name: 7}))
if name == "spoils":
    os.abort()
"""


def test_a_part_that_dies_takes_no_other_along(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    figures = Figures(output, Budget(100.0), {"gpu": "none"})
    told: dict[str, float] = {}

    def command_of(name: str, seconds: float, path: Path) -> list[str]:
        told[name] = seconds
        return [sys.executable, "-c", PART, name, str(path)]

    run_apart(figures, {"spoils": 0.3, "lasts": 0.7}, output, command_of)
    assert 17 < told["spoils"] <= 22
    assert 82 < told["lasts"] <= 92
    written = json.loads(output.read_text())
    assert (written["gpu"], written["spoils"], written["lasts"]) == ("none", 7, 7)
    assert [(row["section"], row["value"]) for row in written["rows"]] == [
        ("spoils", 1.0),
        ("spoils", "failed: exit status -6"),
        ("lasts", 1.0),
    ]


def test_a_part_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_parts, "LEAST_SECONDS", 0.3)
    now = iter([0.0, 99.6, 100.0])
    figures = Figures(None, Budget(100.0, clock=lambda: next(now)), {})
    script = [sys.executable, "-c", "import time; time.sleep(60)"]
    run_apart(figures, {"hangs": 0.0, "late": 0.0}, tmp_path / "out.json", lambda *_: script)
    assert [row["value"] for row in figures.rows] == ["failed: ended after 0 s", "left out: 0 s are left"]


def test_what_a_part_has_started_ends_with_it(tmp_path: Path) -> None:
    """A sanitizer that goes on holds on to the GPU."""
    note = tmp_path / "child"
    script = (
        "import pathlib, subprocess, sys; child = subprocess.Popen([sys.executable, '-c', "
        f"'import time; time.sleep(600)']); pathlib.Path({str(note)!r}).write_text(str(child.pid))"
    )
    figures = Figures(None, Budget(100.0), {})
    run_apart(figures, {"leaves": 1.0}, tmp_path / "out.json", lambda *_: [sys.executable, "-c", script])
    assert figures.rows == []
    child = Path(f"/proc/{note.read_text()}/stat")
    with suppress(FileNotFoundError):  # nobody may have waited for it yet
        while child.read_text().rpartition(")")[2].split()[0] not in "ZX":
            pass
