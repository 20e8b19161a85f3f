from __future__ import annotations

import torch
from bench.gpu_ceilings import measure_ceilings
from bench.gpu_timing import Budget, Figures


def test_ceilings_are_of_memory_and_of_products() -> None:
    figures = Figures(None, Budget(100.0), {})
    ceilings = measure_ceilings(figures, torch.device("cpu"), torch.float32, is_tiny=True)
    assert [row["unit"] for row in figures.rows] == ["GB/s", "GB/s", "TFLOP/s"]
    assert ceilings[0] == 1e9 * max(figures.rows[0]["value"], figures.rows[1]["value"])
    assert ceilings[1] == 1e12 * figures.rows[2]["value"]
