"""The kernel benchmark counts bytes and operations right, and runs from end to end."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from bench.kernel_shapes import MODELS, LinearShape, ModelShapes
from bench.kernels import Ceilings, measure_attention, measure_ceilings, measure_linear, measure_model

from bench import kernels
from triolet_kernels.ops import Ops, select_ops

MODEL = ModelShapes("small", 2, (LinearShape("only", 64, 96, "Q4_1", 2),), 9, 3, 64)


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
    shape = LinearShape("only", 64, 96, kind, 1)
    results = measure_linear(ops, shape, [1, 4], dtype, seconds=0.001, num_bytes=100_000)
    for num_rows, (seconds, size, num_operations) in zip([1, 4], results, strict=True):
        assert seconds > 0
        assert size == num_bytes
        assert num_operations == 2 * num_rows * 64 * 96


@pytest.mark.parametrize(("start", "end", "num_keys"), [(10, 11, 11), (0, 4, 10), (2, 4, 7)])
@pytest.mark.parametrize(("cache_dtype", "bytes_each"), [(torch.bfloat16, 64 * 2), (torch.int8, 64 + 2)])
def test_attention_counts_the_keys_each_token_sees(
    ops: Ops, start: int, end: int, num_keys: int, cache_dtype: torch.dtype, bytes_each: int
) -> None:
    seconds, size, operations = measure_attention(
        ops, MODEL, (3, start, end), torch.bfloat16, cache_dtype=cache_dtype, seconds=0.001, num_bytes=100_000
    )
    assert seconds > 0
    assert size == 3 * end * 3 * 2 * bytes_each
    assert operations == 3 * num_keys * 4 * 9 * 64


def test_ceilings_are_those_of_the_machine() -> None:
    ceilings = measure_ceilings(torch.float32, seconds=0.001, num_bytes=1 << 20, size=64)
    assert 1e8 < ceilings.bytes_read < 1e13
    assert 1e6 < ceilings.operations < 1e14


def test_a_share_is_that_of_the_nearer_ceiling() -> None:
    ceilings = Ceilings(bytes_read=100.0, operations=1000.0)
    assert ceilings.share(2.0, num_bytes=100, num_operations=10) == 0.5
    assert ceilings.share(2.0, num_bytes=1, num_operations=500) == 0.25


def test_a_model_has_a_row_for_each_kernel_and_number_of_rows(
    ops: Ops, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "MOST_CACHE", 1 << 20)
    spans = [(2, 5, 6), (100, 0, 8000)]  # the second one's cache is too large
    table = measure_model(
        ops, MODEL, [1, 2], spans, torch.bfloat16, cache_dtype=torch.bfloat16, seconds=0.001
    )
    assert [(row["kernel"], row["rows"]) for row in table] == [
        ("ceiling", 0), ("linear", 1), ("linear", 2), ("attention", 2),
    ]  # fmt: skip
    for row in table[1:]:
        assert row["step us"] == pytest.approx(2 * row["us"], abs=0.6)


def test_the_command_prints_a_table_and_writes_json_and_csv(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(MODELS, "small", MODEL)
    output, lines = tmp_path / "out.json", tmp_path / "out.csv"
    options = ["--models", "small", "--rows", "1", "2", "--threads", "1", "--seconds", "0.001"]
    files = ["--json", str(output), "--csv", str(lines)]
    assert kernels.main([*options, "--no-attention", *files]) == 0
    names = [row["kernel"] for row in json.loads(output.read_text())["rows"]]
    assert names == ["ceiling", "linear", "linear"]
    with lines.open() as file:
        assert [row["kernel"] for row in csv.DictReader(file)] == names
    assert "GFLOP/s" in capsys.readouterr().out
