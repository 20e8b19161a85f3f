"""Imports flow down only, and importing the package costs next to nothing."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.hygiene.source_files import ROOT

HEAVY = {"torch", "numpy", "transformers", "tokenizers", "quart", "hypercorn", "trio", "asyncio", "rich"}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT / "src"), str(ROOT / "kernels"), str(ROOT)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_importing_triolet_loads_nothing_heavy() -> None:
    code = f"import sys, triolet; print(sorted({HEAVY!r} & set(sys.modules)))"
    done = run("-c", code)
    assert done.stdout == "[]\n", done.stderr


def test_every_public_name_resolves() -> None:
    done = run("-c", "import triolet; [getattr(triolet, name) for name in triolet.__all__]")
    assert done.returncode == 0, done.stderr


def test_the_import_contracts_hold() -> None:
    done = run(
        "-c",
        "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())",
    )
    assert done.returncode == 0, done.stdout + done.stderr
