"""Time on a device, a budget of it, and rows of figures that are on disk as soon as they are known.

Knows nothing of what is measured.
"""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from triolet.runtime.accelerator import CaptureError
from triolet.runtime.cuda import CudaDevice

__all__ = ["Budget", "Figures", "kernel_seconds", "num_copies", "seconds_of"]

MOST_CALLS = 200
"""In one graph."""


def seconds_of(function: Callable[[], object], device: torch.device, *, seconds: float = 0.2) -> float:
    """Seconds of one call: the median of ten runs of as many calls as fill a tenth of ``seconds``."""
    function()
    once = max(_elapsed(function, device, 1), 1e-7)
    count = max(1, int(seconds / 10 / once))
    runs = sorted(_elapsed(function, device, count) / count for _ in range(10))
    return runs[len(runs) // 2]


def kernel_seconds(
    functions: Sequence[Callable[[], Tensor]], device: torch.device, *, seconds: float = 0.2
) -> tuple[float, bool]:
    """Seconds of one call, the functions taken in turn, and whether the host's share is left out.

    On a GPU it is, by replaying calls as a graph: to start a small kernel takes longer than the kernel does.
    """
    turn = _in_turn(functions, len(functions))
    if device.type == "cpu":
        return seconds_of(turn, device, seconds=seconds) / len(functions), False
    turn()
    once = max(_elapsed(turn, device, 1), 1e-6) / len(functions)
    num_turns = -(-min(MOST_CALLS, int(seconds / 10 / once) + 1) // len(functions))
    gpu = CudaDevice(device)
    try:
        graph = gpu.capture(_in_turn(functions, num_turns * len(functions)), gpu.graph_pool())
    except CaptureError:
        return seconds_of(turn, device, seconds=seconds) / len(functions), False
    graph.replay()
    runs = sorted(_elapsed(graph.replay, device, 1) for _ in range(10))
    return runs[len(runs) // 2] / num_turns / len(functions), True


def _in_turn(functions: Sequence[Callable[[], Tensor]], num_calls: int) -> Callable[[], Tensor]:
    def run() -> Tensor:
        result = functions[0]()
        for index in range(1, num_calls):
            result = functions[index % len(functions)]()
        return result

    return run


def num_copies(num_bytes: int, device: torch.device) -> int:
    """How many copies of what a kernel reads, taken in turn, a GPU's own cache has no room for."""
    if device.type == "cpu":
        return 1
    # Older builds of torch do not tell: as large as any yet.
    cache_bytes = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 2**26)
    return max(1, min(MOST_CALLS, -(-4 * cache_bytes // num_bytes)))


def _elapsed(function: Callable[[], object], device: torch.device, count: int) -> float:
    if device.type == "cpu":
        started = time.perf_counter()
        for _ in range(count):
            function()
        return time.perf_counter() - started
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(count):
        function()
    end.record()
    torch.cuda.synchronize(device)
    return float(start.elapsed_time(end)) / 1e3


@dataclass
class Budget:
    """Seconds that are left; ``clock`` gives seconds."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.clock()

    @property
    def left(self) -> float:
        return self.seconds - (self.clock() - self.started)


class Figures:
    """Rows of figures: printed, and written to ``path`` as JSON, one by one."""

    def __init__(self, path: Path | None, budget: Budget, about: dict[str, Any]) -> None:
        self._path = path
        self.budget = budget
        self.about = about
        self.rows: list[dict[str, Any]] = []

    def add(
        self,
        section: str,
        case: str,
        value: float | str,
        unit: str = "",
        *,
        share: float | None = None,
        goal: float | None = None,
        **more: Any,
    ) -> None:
        """``share``: of a ceiling; ``goal``: what that is to be at least."""
        # Of a ceiling that could not be measured nothing is a share.
        verdict = ""
        if share is not None and goal is not None and not math.isnan(share):
            verdict = "ok" if share >= goal else "below goal"
        row = {"section": section, "case": case, "value": value, "unit": unit, "share": share, "goal": goal}
        self.rows.append({**row, "verdict": verdict, **more})
        print(_line(self.rows[-1]), flush=True)
        self.write()

    @contextmanager
    def section(self, name: str, *, at_least: float = 5.0) -> Iterator[bool]:
        """Whether there are so many seconds left; what is raised inside becomes a row."""
        if self.budget.left < at_least:
            self.add(name, "-", f"left out: {self.budget.left:.0f} s are left")
            yield False
            return
        try:
            yield True
        except Exception as exc:
            last = traceback.format_exc(limit=-4)
            self.add(name, "-", f"failed: {type(exc).__name__}: {str(exc)[:300]}", trace=last)
            print(last, flush=True)

    def write(self) -> None:
        if self._path is not None:
            # Whoever is ended in the midst of it leaves the rows before.
            new = self._path.with_name(f"{self._path.name}.new")
            new.write_text(json.dumps({**self.about, "rows": self.rows}, indent=1) + "\n")
            new.replace(self._path)

    def print_table(self) -> None:
        for row in self.rows:
            print(_line(row))


def _line(row: dict[str, Any]) -> str:
    value = row["value"]
    shown = f"{value:,.4g}" if isinstance(value, float) else str(value)
    share = "" if row["share"] is None else f"{100 * row['share']:6.1f} %"
    goal = "" if row["goal"] is None else f"goal {100 * row['goal']:.0f} %"
    line = f"{row['section']:<12} {row['case']:<44} {shown:>12} {row['unit']:<9} {share:>8} {goal:<10}"
    return f"{line} {row['verdict']}".rstrip()
