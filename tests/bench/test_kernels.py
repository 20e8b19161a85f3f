"""The kernel benchmark counts bytes and operations right, and runs from end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from bench.kernels import default_megabytes, measure_attention, measure_ceilings, measure_linear

from bench import kernels
from triolet_kernels.ops import Ops, select_ops


@pytest.fixture
def ops() -> Ops:
    return select_ops(torch.device("cpu"), num_threads=1)


@pytest.mark.parametrize(
    ("kind", "dtype", "num_bytes"),
    [
        ("dense", torch.bfloat16, 2 * 64 * 96),
        ("dense", torch.float32, 4 * 64 * 96),
        ("Q4_1", torch.float32, 4 * 64 * 96),  # dequantised
        ("Q4_1", torch.bfloat16, 64 * 96 // 32 * 20),
    ],
)
def test_linear_counts_the_bytes_it_reads_and_operations(
    ops: Ops, kind: str, dtype: torch.dtype, num_bytes: int
) -> None:
    one, four = measure_linear(ops, 64, 96, kind, [1, 4], dtype, seconds=0.001, megabytes=1)
    for row, num_rows in ((one, 1), (four, 4)):
        assert row["rows"] == num_rows
        assert row["GB/s"] * row["us"] == pytest.approx(num_bytes / 1e3)
        assert row["GFLOP/s"] * row["us"] == pytest.approx(2 * num_rows * 64 * 96 / 1e3)


@pytest.mark.parametrize(("start", "end", "num_keys"), [(10, 11, 11), (0, 4, 10), (2, 4, 7)])
def test_attention_counts_the_keys_each_token_sees(ops: Ops, start: int, end: int, num_keys: int) -> None:
    row = measure_attention(ops, 3, start, end, torch.bfloat16, seconds=0.001, megabytes=1)
    assert row["GFLOP/s"] * row["us"] == pytest.approx(3 * num_keys * 4 * 9 * 64 / 1e3)
    assert row["GB/s"] * row["us"] == pytest.approx(3 * end * 3 * 64 * 2 * 2 / 1e3)


def test_attention_goes_round_as_many_caches_as_asked_for() -> None:
    caches: list[int] = []

    class Noted:
        def paged_attention(self, query: torch.Tensor, keys: torch.Tensor, *_: Any, **__: Any) -> None:
            caches.append(keys.data_ptr())

    measure_attention(Noted(), 1, 200, 201, torch.bfloat16, seconds=0.001, megabytes=4)  # type: ignore[arg-type]
    num_bytes = 7 * kernels.NUM_KV_HEADS * kernels.BLOCK_SIZE * kernels.HEAD_DIM * 2 * 2
    assert len(set(caches)) * num_bytes >= 4 << 20


def test_by_default_more_is_read_than_caches_hold_up_to_a_limit(tmp_path: Path) -> None:
    assert default_megabytes(tmp_path) == 256
    for index, (size, megabytes) in enumerate((("2048K", 3), ("32768K", 48), ("491520K", 256))):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(f"{size}\n")
        assert default_megabytes(tmp_path) == megabytes


def test_ceilings_are_measured_in_the_same_units() -> None:
    read, multiply = measure_ceilings(torch.float32, seconds=0.001, megabytes=1)
    assert read["GB/s"] * read["us"] == pytest.approx((1 << 20) / 1e3)
    assert multiply["GFLOP/s"] * multiply["us"] == pytest.approx(2 * 1024**3 / 1e3)


def test_the_command_prints_a_table_and_writes_json(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kernels, "LINEAR_SHAPES", ((64, 32),))
    monkeypatch.setattr(kernels, "ATTENTION_SPANS", ((2, 5, 6),))
    output = tmp_path / "out.json"
    options = ["--rows", "1", "2", "--threads", "1", "--seconds", "0.001", "--megabytes", "1", "--json"]
    assert kernels.main([*options, str(output)]) == 0
    names = [row["kernel"] for row in json.loads(output.read_text())["rows"]]
    assert names == ["read", "matmul", *["linear"] * 4, "attention"]
    assert "GFLOP/s" in capsys.readouterr().out
