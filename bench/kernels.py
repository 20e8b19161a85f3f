"""Speed of each kernel of a model beside what the machine can do at most: a roofline table.

    python -m bench.kernels
    python -m bench.kernels --models smollm2-135m-q4_1 --rows 1 8 --json out.json --csv out.csv

A kernel is run as in a step: all layers' calls recorded as one program, so that Python is not in the way,
over weights or KV caches that take as much memory together as the model does, so that the CPU's caches hold
as much of them as in a step. The ceilings come from the same run: what torch reads of as much memory, and
what it multiplies. ``share`` is the time that the nearer ceiling leaves for a call, of the time it took; the
second ceiling is oneDNN's, which a kernel may pass. Times are the best twentieth of many runs: the machine is
rarely one's own. Weights are random.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import gguf
import torch
from torch import Tensor

from bench.kernel_shapes import MODELS, LinearShape, ModelShapes
from bench.report import print_table, write_csv, write_json
from triolet_kernels.ops import AttentionBatch, KVCache, Ops, select_ops
from triolet_kernels.preferred_dtype import preferred_dtype
from triolet_kernels.quant import QuantTensor
from triolet_kernels.reference.cache_codes import entry_size

__all__ = [
    "Ceilings",
    "best_time",
    "main",
    "measure_attention",
    "measure_ceilings",
    "measure_linear",
    "measure_model",
    "packed_bytes",
]

BLOCK_SIZE = 32
DECODE_SPANS = tuple((count, keys, keys + 1) for keys in (200, 2000, 8000) for count in (1, 8, 32))
PREFILL_SPANS = ((1, 0, 512), (1, 1536, 2048), (1, 7488, 8000))
MOST_CACHE = 4 << 30
"""Bytes of KV cache of one layer above which a span is left out."""

_COLUMNS = ("model", "kernel", "shape", "rows", "us", "step us", "GB/s", "GFLOP/s", "share")


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Bytes read and operations done in a second, at most."""

    bytes_read: float
    operations: float

    def share(self, seconds: float, num_bytes: float, num_operations: float) -> float:
        """Time that the nearer ceiling leaves, of the time taken."""
        return max(num_bytes / self.bytes_read, num_operations / self.operations) / seconds


def best_time(calls: Sequence[Callable[[], object]], seconds: float) -> float:
    """Seconds of one call: the 5th percentile over going round ``calls`` for so many seconds."""
    times: list[float] = []
    for call in calls:
        call()
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        for call in calls:
            started = time.perf_counter()
            call()
            times.append(time.perf_counter() - started)
    return sorted(times)[len(times) // 20]


def measure_ceilings(dtype: torch.dtype, seconds: float, num_bytes: int, size: int = 2048) -> Ceilings:
    """What torch reads of so much memory, and what it multiplies in ``dtype``, in matrices of ``size``."""
    values = torch.ones(num_bytes // 4)
    read = best_time([lambda: torch.dot(values, values)], seconds)
    left, right = torch.ones(size, size, dtype=dtype), torch.ones(size, size, dtype=dtype)
    multiply = best_time([lambda: left @ right], seconds)
    return Ceilings(values.nbytes / read, 2 * size**3 / multiply)


def measure_linear(
    ops: Ops, shape: LinearShape, rows: Sequence[int], dtype: torch.dtype, *, seconds: float, num_bytes: int
) -> list[tuple[float, int, int]]:
    """For each number of rows: seconds, bytes and operations of one call."""
    weight = _random_weight(shape)
    packed = [ops.pack_linear(weight, None, dtype)]
    size = packed_bytes(packed[0])
    packed += [ops.pack_linear(weight, None, dtype) for _ in range(num_bytes // size)]

    def step(x: Tensor, _batches: Sequence[AttentionBatch], _cache: KVCache, _rows: Tensor) -> Tensor:
        for layer in packed:
            output = ops.linear(x, layer)
        return output

    run = ops.step_runner()
    results = []
    for num_rows in rows:
        x = torch.randn(num_rows, shape.width).to(dtype)
        batches: list[AttentionBatch] = []
        arguments = (step, x, batches, [(x, x)], torch.arange(1))
        taken = best_time([lambda arguments=arguments: run(*arguments)], seconds) / len(packed)  # type: ignore[misc]
        results.append((taken, size, 2 * num_rows * shape.width * shape.height))
    return results


def measure_attention(
    ops: Ops, model: ModelShapes, span: tuple[int, int, int], dtype: torch.dtype, *,
    cache_dtype: torch.dtype, seconds: float, num_bytes: int,
) -> tuple[float, int, int]:  # fmt: skip
    """Seconds, bytes and operations of attention for so many sequences, each computing ``start:end``."""
    num_sequences, start, end = span
    batch, num_blocks = _make_batch(num_sequences, start, end)
    size = entry_size(model.head_dim, cache_dtype)
    shape = (2, num_blocks, model.num_kv_heads, BLOCK_SIZE, size)
    # Codes of 0x3c are finite scales as well.
    caches = (
        [torch.full(shape, 0x3C, dtype=torch.int8)]
        if cache_dtype == torch.int8
        else [torch.randn(shape).to(dtype)]
    )
    caches += [caches[0].clone() for _ in range(num_bytes // caches[0].nbytes)]

    def step(x: Tensor, batches: Sequence[AttentionBatch], _cache: KVCache, _rows: Tensor) -> Tensor:
        query = x.new_empty(len(x), model.num_heads, model.head_dim)
        for keys, values in caches:
            output = ops.paged_attention(query, keys, values, batches[0], scale=model.head_dim**-0.5)
        return output

    run, x = ops.step_runner(), torch.zeros(len(batch.positions), 1, dtype=dtype)
    arguments = (step, x, [batch], [(caches[0][0], caches[0][1])], torch.arange(1))
    taken = best_time([lambda: run(*arguments)], seconds) / len(caches)
    num_keys = num_sequences * (end * (end + 1) - start * (start + 1)) // 2
    read = num_sequences * end * model.num_kv_heads * size * 2 * cache_dtype.itemsize
    return taken, read, 4 * num_keys * model.num_heads * model.head_dim


def measure_model(
    ops: Ops, model: ModelShapes, rows: Sequence[int], spans: Sequence[tuple[int, int, int]],
    dtype: torch.dtype, *, cache_dtype: torch.dtype, seconds: float,
) -> list[dict[str, Any]]:  # fmt: skip
    """The rows of one model's table, its ceilings first."""
    num_bytes = model.num_bytes(dtype.itemsize)
    ceilings = measure_ceilings(dtype, seconds, num_bytes)
    table = [
        _row(model, "ceiling", f"{num_bytes >> 20} MB", 0, 0, (0, ceilings.bytes_read, ceilings.operations))
    ]
    for shape in model.linears:
        name = f"{shape.name} {shape.width}->{shape.height} {shape.kind}"
        results = measure_linear(ops, shape, rows, dtype, seconds=seconds, num_bytes=num_bytes)
        for num_rows, result in zip(rows, results, strict=True):
            table.append(_row(model, "linear", name, num_rows, shape.count, result, ceilings))
    cache_size = 2 * model.num_kv_heads * entry_size(model.head_dim, cache_dtype) * cache_dtype.itemsize
    for span in spans:
        num_sequences, start, end = span
        if num_sequences * end * cache_size * model.num_layers > MOST_CACHE:
            continue
        result = measure_attention(
            ops, model, span, dtype, cache_dtype=cache_dtype, seconds=seconds, num_bytes=num_bytes
        )
        num_rows = num_sequences * (end - start)
        table.append(_row(model, "attention", f"{start}:{end}", num_rows, model.num_layers, result, ceilings))
    return table


def packed_bytes(packed: Any) -> int:
    """Bytes of the tensors in what an implementation made of a weight."""
    if isinstance(packed, torch.Tensor):
        return packed.nbytes
    parts = fields(packed) if is_dataclass(packed) else ()
    return sum(packed_bytes(getattr(packed, part.name)) for part in parts)


def _random_weight(shape: LinearShape) -> torch.Tensor | QuantTensor:
    if shape.kind == "dense":
        return torch.randn(shape.height, shape.width)
    values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[shape.kind]]
    # Bytes below 0x3c keep the scales small and finite.
    data = torch.randint(0, 0x3C, (shape.height, shape.width // values * size), dtype=torch.uint8)
    return QuantTensor(data, shape.kind, (shape.height, shape.width))


def _make_batch(num_sequences: int, start: int, end: int) -> tuple[AttentionBatch, int]:
    blocks_each = -(-end // BLOCK_SIZE)
    tables = torch.randperm(num_sequences * blocks_each).to(torch.int32).view(num_sequences, blocks_each)
    positions = torch.arange(start, end).repeat(num_sequences)
    batch = AttentionBatch(
        positions=positions,
        cache_slots=positions,
        block_tables=tables,
        query_starts=(torch.arange(num_sequences + 1) * (end - start)).to(torch.int32),
        sequence_lengths=torch.full((num_sequences,), end, dtype=torch.int32),
        max_query_length=end - start,
        max_sequence_length=end,
    )
    return batch, tables.numel()


def _row(
    model: ModelShapes, kernel: str, shape: str, rows: int, count: int,
    result: tuple[float, float, float], ceilings: Ceilings | None = None,
) -> dict[str, Any]:  # fmt: skip
    """A row of the table. Without ceilings the result is the ceilings themselves, for a second."""
    seconds, num_bytes, num_operations = result
    share = ceilings.share(seconds, num_bytes, num_operations) if ceilings else 1.0
    per_second = 1e9 * (seconds if ceilings else 1.0)
    values = (
        model.name, kernel, shape, rows, round(seconds * 1e6, 1), round(seconds * 1e6 * count),
        round(num_bytes / per_second, 1), round(num_operations / per_second, 1), round(share, 2),
    )  # fmt: skip
    return dict(zip(_COLUMNS, values, strict=True))


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    torch.set_num_threads(options.threads)
    device = torch.device("cpu")
    dtype = preferred_dtype(device) if options.dtype == "auto" else getattr(torch, options.dtype)
    cache_dtype = torch.int8 if options.kv_cache_dtype == "int8" else dtype
    ops = select_ops(device, is_reference=options.kernels == "reference", num_threads=options.threads)
    table: list[dict[str, Any]] = []
    for name in options.models:
        spans = () if options.no_attention else (*DECODE_SPANS, *PREFILL_SPANS)
        table += measure_model(
            ops, MODELS[name], options.rows, spans, dtype, cache_dtype=cache_dtype, seconds=options.seconds
        )
    print(f"{ops.name}, {options.threads} threads, {str(dtype).removeprefix('torch.')}")
    print_table(table, _COLUMNS)
    if options.json:
        write_json(options.json, table)
    if options.csv:
        write_csv(options.csv, table)
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Speed of each CPU kernel beside the machine's ceilings.")
    parser.add_argument(
        "--models", nargs="+", choices=list(MODELS), default=["smollm2-135m-q4_1"], help="whose shapes"
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 512], help="rows of a linear layer")
    parser.add_argument("--no-attention", action="store_true", help="linear layers only")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--dtype", choices=["auto", "float32", "bfloat16"], default="auto")
    parser.add_argument("--kv-cache-dtype", choices=["auto", "int8"], default="auto")
    parser.add_argument("--kernels", choices=["auto", "reference"], default="auto")
    parser.add_argument("--seconds", type=float, default=0.3, help="of each measurement")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--csv", type=Path, help="and here")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
