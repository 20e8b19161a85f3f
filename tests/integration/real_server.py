"""``python -m server`` on the default model as a process of its own, as its users have it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["real_server"]

ROOT = Path(__file__).parents[2]


@contextmanager
def real_server(model: Path, *flags: str) -> Iterator[str]:
    """The address of a server of ``model``, called ``smollm2`` if no flag says otherwise.

    It must end well on SIGTERM.
    """
    path = os.pathsep.join(str(ROOT / name) for name in ("src", "kernels"))
    process = subprocess.Popen(
        [
            sys.executable, "-m", "server", str(model), "--served-model-name", "smollm2",
            "--port", "0", "--num-kv-blocks", "256", "--seed", "1", *flags,
        ],
        env=os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        announced = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        assert announced is not None, "the first line tells the address"
        yield announced.group()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()
