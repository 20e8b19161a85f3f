"""Rows of figures: percentiles, tables, JSON and CSV files, and what machine they are from.

Knows nothing of servers or models.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

__all__ = [
    "busy_cores",
    "busy_seconds",
    "machine",
    "median_rows",
    "percentile",
    "print_table",
    "write_csv",
    "write_json",
]

Row = Mapping[str, Any]


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that ``percent`` % of the values do not exceed, interpolated; 0 of nothing."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def machine() -> dict[str, Any]:
    """What a figure depends on beside the code: processor, cores, memory, kernel, commit and date."""
    return {
        "processor": _first_field("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _first_field("/proc/meminfo", "MemTotal"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def busy_cores(seconds: float = 1.0) -> float:
    """How many cores were busy, on average, during the next ``seconds``."""
    before = busy_seconds()
    time.sleep(seconds)
    return round((busy_seconds() - before) / seconds, 3)


def busy_seconds() -> float:
    """Seconds that all cores together have spent on something. Source: proc_stat(5)."""
    user, nice, system, _idle, _io_wait, irq, soft_irq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + soft_irq + steal) / os.sysconf("SC_CLK_TCK")


def _first_field(path: str, name: str) -> str | None:
    lines = Path(path).read_text().splitlines() if Path(path).exists() else []
    values = (line.partition(":")[2].strip() for line in lines if line.startswith(name))
    return next(values, None)


def _commit() -> str | None:
    folder = Path(__file__).parent
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError:  # a machine without git
        return None
    return done.stdout.strip() or None


def median_rows(rows: Iterable[Row], keys: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each combination of ``keys``: the median of every number, in order of first appearance."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    merged = []
    for key_values, group in groups.items():
        values = {name: _median([row[name] for row in group]) for name in group[0] if name not in keys}
        merged.append({**dict(zip(keys, key_values, strict=True)), **values, "num_rounds": len(group)})
    return merged


def _median(values: list[Any]) -> Any:
    is_number = all(isinstance(value, int | float) for value in values)
    return round(median(values), 6) if is_number else values[0]


def print_table(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Print some columns of the rows, aligned, to standard output."""
    lines = [list(columns), *([_cell(row.get(column)) for column in columns] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) < 10 else f"{value:,.1f}"
    return "" if value is None else str(value)


def write_json(path: Path, rows: Sequence[Row], **settings: Any) -> None:
    """The rows with the machine and the settings they were made with."""
    content = {"machine": machine(), "settings": settings, "rows": list(rows)}
    path.write_text(json.dumps(content, indent=1) + "\n")


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """The rows as CSV, one column for each name in any of them."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
