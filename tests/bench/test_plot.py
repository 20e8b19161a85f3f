from __future__ import annotations

from pathlib import Path

import pytest
from bench.plot import plot_levels, plot_sweep


@pytest.mark.parametrize(("ending", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_servers_and_levels_are_drawn(tmp_path: Path, ending: str, start: bytes) -> None:
    rows = [
        {"server": server, "concurrency": level, "output_tokens_per_s": 10.0 * level, "ttft_p50": 0.1}
        for server in ("ours", "theirs")
        for level in (1, 8)
    ]
    path = tmp_path / f"plot.{ending}"
    plot_levels(rows, path)
    assert path.read_bytes().startswith(start)


def test_a_sweep_is_drawn_over_batches_and_contexts(tmp_path: Path) -> None:
    shapes = [(1, 64), (8, 64), (1, 128), (1, 512), (8, 128), (8, 512)]
    rows = [
        {
            "batch": batch,
            "prompt_words": words,
            "prompt_tokens": batch * words,
            "decode_tokens_per_s": 100.0 * batch,
        }
        for batch, words in shapes
    ]
    path = tmp_path / "sweep.svg"
    plot_sweep(rows, path)
    drawn = path.read_text()
    assert "sequences in a step" in drawn
    assert "8 sequences" in drawn
    assert "prompts of 64 words" in drawn
