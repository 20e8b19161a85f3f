"""What a launcher of several API servers needs, and finds out first. That it serves is shown in shapes."""

from __future__ import annotations

import subprocess
import sys

import anyio
import pytest

from triolet.args import ServeArgs
from triolet.errors import UsageError
from triolet.web.launch import launch

HEAVY = ("quart", "quart_trio", "hypercorn", "torch", "numpy", "tokenizers", "jinja2")


def test_the_launcher_imports_neither_http_nor_torch() -> None:
    script = f"import sys, triolet.web.launch; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert done.stdout.strip() == "[]"


def test_a_model_that_is_not_there_is_told_before_any_process_starts() -> None:
    args = ServeArgs(model="no-such-model", api_server_count=2, port=0)
    with pytest.raises(UsageError, match="nothing that is known here"):
        anyio.run(launch, args)
