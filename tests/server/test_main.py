from __future__ import annotations

import os
import subprocess
import sys

from tests.hygiene.source_files import ROOT


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "kernels")])
    return subprocess.run(
        [sys.executable, "-m", "server", *arguments],
        env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_it_is_the_serve_command() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "usage: python -m server" in done.stdout
    assert "--shutdown-timeout" in done.stdout


def test_a_wrong_option_is_one_line_and_code_2() -> None:
    done = run("--port", "-1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "python -m server: port (--port) must be in [0, 65535], got -1\n"


def test_a_model_that_is_not_there_is_code_2_with_the_remedy() -> None:
    done = run("nowhere/missing.gguf", "--port", "0")
    assert done.returncode == 2
    assert "A model is named by a built-in name" in done.stderr
    assert "Traceback" not in done.stderr
