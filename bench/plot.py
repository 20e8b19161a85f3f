"""Draws rows of :mod:`bench.online`: throughput and time to first token over the number of clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["plot_levels"]


def plot_levels(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """One bar for each server and number of clients, in the format that the name of ``path`` ends in."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "bench"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    _bars(axes[0], rows, "output_tokens_per_s", "output tokens per second")
    _bars(axes[1], rows, "ttft_p50", "seconds to the first token (median)")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def _bars(axis: Any, rows: Sequence[Mapping[str, Any]], figure: str, title: str) -> None:
    servers = list(dict.fromkeys(row["server"] for row in rows))
    levels = sorted({row["concurrency"] for row in rows})
    width = 0.8 / len(servers)
    for number, server in enumerate(servers):
        values = {row["concurrency"]: row[figure] for row in rows if row["server"] == server}
        places = [levels.index(level) + (number - (len(servers) - 1) / 2) * width for level in values]
        bars = axis.bar(places, list(values.values()), width, label=server)
        axis.bar_label(bars, fmt="{:,.3g}", fontsize=7)
    axis.set_xticks(range(len(levels)), [str(level) for level in levels])
    axis.set_xlabel("clients")
    axis.set_title(title, fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)
