"""Parts of a run, each in a process of its own: one that spoils the GPU, hangs or dies takes no other along.

Knows nothing of what a part does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from bench.gpu_timing import Figures

__all__ = ["run_apart"]

LEAST_SECONDS = 20.0
START_SECONDS = 8.0
"""A part is told of so much less than it has: imports, and a GPU's context."""


def run_apart(
    figures: Figures,
    shares: Mapping[str, float],
    output: Path,
    command_of: Callable[[str, float, Path], Sequence[str]],
) -> None:
    """Run the parts in order; rows, and what the parts want known to later ones, end up in ``figures``.

    ``shares``: of all the time, what is kept for each part; what one leaves the next ones have.
    ``command_of``: a part, its seconds and the file its figures are to be in → what to run. The files lie
    beside ``output``.
    """
    names = list(shares)
    for index, name in enumerate(names):
        kept = figures.budget.seconds * sum(shares[later] for later in names[index + 1 :])
        seconds = figures.budget.left - kept
        if seconds < LEAST_SECONDS:
            figures.add(name, "-", f"left out: {seconds:.0f} s are left")
            continue
        path = output.with_suffix(f".{name}.json")
        path.unlink(missing_ok=True)
        ended = _run(command_of(name, seconds - START_SECONDS, path), seconds)
        if path.exists():
            found = json.loads(path.read_text())
            figures.rows += found.pop("rows")
            figures.about |= found
        if ended is not None:
            figures.add(name, "-", f"failed: {ended}")
        figures.write()


def _run(command: Sequence[str], seconds: float) -> str | None:
    """How it ended, unless well. What it has started ends with it, or it would hold on to the GPU."""
    process = subprocess.Popen(command, start_new_session=True)
    try:
        status = process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"ended after {seconds:.0f} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return None if status == 0 else f"exit status {status}"
