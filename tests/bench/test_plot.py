from __future__ import annotations

from pathlib import Path

import pytest
from bench.plot import plot_levels


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
