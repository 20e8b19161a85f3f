from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from bench.gpu_timing import Budget, Figures, kernel_seconds, num_copies, seconds_of


def figures_of(path: Path | None = None, seconds: float = 100.0) -> Figures:
    now = [0.0]
    figures = Figures(path, Budget(seconds, clock=lambda: now[0]), {"gpu": "none"})
    now[0] = 10.0
    return figures


def test_a_row_is_on_disk_as_soon_as_it_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = figures_of(tmp_path / "out.json")
    figures.add("kernels", "copy", 12.5, "GB/s", share=0.9, goal=0.8, bound="memory")
    figures.add("kernels", "matmul", 1.0, "TFLOP/s", share=0.5, goal=0.6)
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["gpu"] == "none"
    assert [row["verdict"] for row in written["rows"]] == ["ok", "below goal"]
    assert written["rows"][0]["bound"] == "memory"
    assert "90.0 % goal 80 %" in capsys.readouterr().out


def test_a_part_that_fails_is_a_row_and_the_next_goes_on() -> None:
    figures = figures_of()
    with figures.section("first") as has_time:
        assert has_time
        raise RuntimeError("no such kernel")
    assert figures.rows[0]["value"] == "failed: RuntimeError: no such kernel"
    assert "no such kernel" in figures.rows[0]["trace"]


def test_a_part_without_time_is_left_out() -> None:
    figures = figures_of(seconds=12.0)
    with figures.section("late", at_least=5.0) as has_time:
        assert not has_time
    assert figures.rows[0]["value"] == "left out: 2 s are left"


def test_calls_are_timed() -> None:
    calls: list[int] = []
    assert 0 < seconds_of(lambda: calls.append(1), torch.device("cpu"), seconds=0.001) < 0.1
    assert len(calls) > 10


def test_functions_are_timed_in_turn() -> None:
    calls: list[int] = []

    def call(number: int) -> torch.Tensor:
        calls.append(number)
        return torch.zeros(1)

    functions = [partial(call, 1), partial(call, 2)]
    taken, is_captured = kernel_seconds(functions, torch.device("cpu"), seconds=0.001)
    assert 0 < taken < 0.1
    assert not is_captured
    assert calls == [1, 2] * (len(calls) // 2)


def test_without_a_gpu_nothing_is_copied() -> None:
    assert num_copies(2**20, torch.device("cpu")) == 1
