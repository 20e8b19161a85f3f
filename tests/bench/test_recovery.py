"""Engines fail under load: every request is answered rightly or fails with its cause, and all come back."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from bench.kills import KINDS
from bench.recovery import Failure, Record, main, summary

CAUSES = (
    "killed by SIGKILL", "killed by SIGSEGV", "nothing was heard of it", "its step did not end",
    "none of the engines that could serve this does so now",
)  # fmt: skip


def test_the_summary_has_a_row_for_each_kind_and_one_for_all() -> None:
    record = Record(
        [Failure("SIGKILL", 0.1, 2.0), Failure("SIGKILL", 0.3, 4.0), Failure("SIGSTOP", 1.0, 6.0)]
    )
    rows = {row["kind"]: row for row in summary(record)}
    assert list(rows) == [*KINDS, "all"]
    assert rows["SIGKILL"]["back p50 s"] == 3.0
    assert rows["SIGSEGV"]["failures"] == 0
    assert (rows["all"]["failures"], rows["all"]["back max s"]) == (3, 6.0)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_engines_that_fail_under_load(
    byte_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, output = tmp_path / "log", tmp_path / "out.json"
    command = ["--model", str(byte_llama), "--kills", "4", "--stall-timeout", "1.5", "--clients", "4"]
    code = main([*command, "--seed", "12", "--log", str(log), "--json", str(output)])
    said = capsys.readouterr().out
    assert code == 0, f"{said}\n{log.read_text()}"
    settings = json.loads(output.read_text())["settings"]
    kinds = [kind for kind, *_ in settings["failures"]]
    assert set(kinds) == set(KINDS)
    assert settings["requests"]["answered"] > 10
    assert all(any(cause in told for cause in CAUSES) for told, _ in settings["causes"])
    assert "Traceback" not in re.sub(r"Fatal Python error.*", "", log.read_text())
