"""Draws rows of :mod:`bench.online` and :mod:`bench.offline`.

Of the first: throughput and time to first token over the number of clients. Of a sweep: throughput over the
batch size, and over the length of the context.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["plot_levels", "plot_sweep"]


def plot_levels(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """One bar for each server and number of clients, in the format that the name of ``path`` ends in."""
    with _two_panels(path) as axes:
        _bars(axes[0], rows, "output_tokens_per_s", "output tokens per second")
        _bars(axes[1], rows, "ttft_p50", "seconds to the first token (median)")


def plot_sweep(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Tokens per second over the batch size, of the shortest prompts; and over the prompts' length, of each
    batch size that has several."""
    shortest = min(row["prompt_words"] for row in rows)
    by_length: dict[int, list[tuple[float, float]]] = {}
    for row in rows:
        if row["prompt_words"] > shortest:
            point = (row["prompt_tokens"] / row["batch"], row["decode_tokens_per_s"])
            by_length.setdefault(row["batch"], []).append(point)
    by_batch = [(row["batch"], row["decode_tokens_per_s"]) for row in rows if row["prompt_words"] == shortest]
    with _two_panels(path) as axes:
        _lines(axes[0], {f"prompts of {shortest} words": by_batch}, "sequences in a step")
        _lines(
            axes[1], {f"{batch} sequences": by_length[batch] for batch in by_length}, "tokens of the prompt"
        )


@contextmanager
def _two_panels(path: Path) -> Iterator[Any]:
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "bench"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    yield axes
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def _lines(axis: Any, lines: Mapping[str, Sequence[tuple[float, float]]], title: str) -> None:
    for label, points in lines.items():
        axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=label)
    axis.set_xscale("log", base=2)
    axis.set_ylim(bottom=0)
    axis.set_xlabel(title)
    axis.set_title("output tokens per second", fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    if lines:
        axis.legend(frameon=False, fontsize=8)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _bars(axis: Any, rows: Sequence[Mapping[str, Any]], figure: str, title: str) -> None:
    servers = list(dict.fromkeys(row["server"] for row in rows))
    levels = sorted({row["concurrency"] for row in rows})
    width = 0.8 / len(servers)
    for number, server in enumerate(servers):
        values = {row["concurrency"]: row[figure] for row in rows if row["server"] == server}
        places = [levels.index(level) + (number - (len(servers) - 1) / 2) * width for level in values]
        bars = axis.bar(places, list(values.values()), width, label=server)
        axis.bar_label(bars, fmt=_short, fontsize=7)
    axis.set_xticks(range(len(levels)), [str(level) for level in levels])
    axis.set_xlabel("clients")
    axis.set_title(title, fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)
