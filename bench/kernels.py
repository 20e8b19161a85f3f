"""Speed of each kernel beside what the machine can do at most: GB/s of memory read, GFLOP/s of arithmetic.

    python -m bench.kernels
    python -m bench.kernels --threads 1 --rows 1 8 32 --json out.json

Shapes are those of SmolLM2-135M. Bytes are those that a kernel reads of its weights, as they were packed,
or of its KV cache. Each goes round copies of them, ``--megabytes`` in all, so that few are still in the CPU's
caches: by default half as much again as the largest of these holds, and 256 at most. The largest caches are
shared by many cores, of which a benchmark has a few, and copies for one of 480 MB take minutes to make. Times
are the best twentieth of many calls: the machine is rarely one's own.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch

from bench.report import print_table, write_json
from triolet_kernels.ops import AttentionBatch, Ops, preferred_dtype, select_ops
from triolet_kernels.quant import QuantTensor

__all__ = [
    "best_time",
    "default_megabytes",
    "main",
    "measure_attention",
    "measure_ceilings",
    "measure_linear",
    "packed_bytes",
]

LINEAR_SHAPES = ((576, 960), (576, 576), (576, 3072), (1536, 576), (576, 49152))
ATTENTION_SPANS = ((1, 200, 201), (8, 200, 201), (32, 200, 201), (1, 2000, 2001), (1, 0, 512))
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 9, 3, 64, 32
BLOCK_BYTES = {"Q4_1": 20, "Q8_0": 34}

_COLUMNS = ("kernel", "shape", "rows", "us", "GB/s", "GFLOP/s")


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


def measure_ceilings(dtype: torch.dtype, seconds: float, megabytes: int = 256) -> list[dict[str, Any]]:
    """What torch reads from memory, and what it multiplies in ``dtype``, at most."""
    values = torch.ones(megabytes << 18)
    read = best_time([values.sum], seconds)
    size = 1024
    left, right = torch.ones(size, size, dtype=dtype), torch.ones(size, size, dtype=dtype)
    multiply = best_time([lambda: left @ right], seconds)
    return [
        _row("read", "memory", 0, read, num_bytes=values.nbytes, num_operations=0),
        _row(
            "matmul",
            str(dtype).removeprefix("torch."),
            size,
            multiply,
            num_bytes=0,
            num_operations=2 * size**3,
        ),
    ]


def measure_linear(
    ops: Ops, width: int, height: int, kind: str, rows: Sequence[int], dtype: torch.dtype, *,
    seconds: float, megabytes: int,
) -> list[dict[str, Any]]:  # fmt: skip
    """One linear layer with random weights of a GGUF ``kind``, or dense ones where it is ``dense``."""
    weight = _random_weight(width, height, kind)
    packed = [ops.pack_linear(weight, None, dtype)]
    num_bytes = packed_bytes(packed[0])
    packed += [ops.pack_linear(weight, None, dtype) for _ in range((megabytes << 20) // num_bytes)]
    table = []
    for num_rows in rows:
        x = torch.randn(num_rows, width).to(dtype)
        seconds_a_call = best_time([lambda p=p, x=x: ops.linear(x, p) for p in packed], seconds)  # type: ignore[misc]
        operations = 2 * num_rows * width * height
        shape = f"{width}->{height} {kind}"
        table.append(
            _row("linear", shape, num_rows, seconds_a_call, num_bytes=num_bytes, num_operations=operations)
        )
    return table


def measure_attention(
    ops: Ops, num_sequences: int, start: int, end: int, dtype: torch.dtype, *, seconds: float, megabytes: int
) -> dict[str, Any]:
    """Attention of ``num_sequences`` sequences, each computing positions ``start:end``."""
    batch, num_blocks = _make_batch(num_sequences, start, end)
    size = (2, num_blocks, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    caches = [torch.randn(size).to(dtype)]
    caches += [caches[0].clone() for _ in range((megabytes << 20) // caches[0].nbytes)]
    query = torch.randn(len(batch.positions), NUM_HEADS, HEAD_DIM).to(dtype)
    calls = [
        lambda cache=cache: ops.paged_attention(query, cache[0], cache[1], batch, scale=0.125)
        for cache in caches
    ]
    num_keys = num_sequences * (end * (end + 1) - start * (start + 1)) // 2
    num_bytes = num_sequences * end * NUM_KV_HEADS * HEAD_DIM * 2 * dtype.itemsize
    return _row(
        "attention", f"{start}:{end}", num_sequences, best_time(calls, seconds),
        num_bytes=num_bytes, num_operations=4 * num_keys * NUM_HEADS * HEAD_DIM,
    )  # fmt: skip


def packed_bytes(packed: Any) -> int:
    """Bytes of the tensors in what an implementation made of a weight."""
    if isinstance(packed, torch.Tensor):
        return packed.nbytes
    parts = fields(packed) if is_dataclass(packed) else ()
    return sum(packed_bytes(getattr(packed, part.name)) for part in parts)


def default_megabytes(caches: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Half as much again as the largest cache, of which others may use a part; 256 at most, and where none is
    known."""
    sizes = [path.read_text().strip() for path in caches.glob("index*/size")]
    kilobytes = max((int(size.removesuffix("K")) for size in sizes if size.endswith("K")), default=0)
    return min(256, kilobytes * 3 // 2048 or 256)


def _random_weight(width: int, height: int, kind: str) -> torch.Tensor | QuantTensor:
    if kind == "dense":
        return torch.randn(height, width)
    # Bytes below 0x3c keep the scales small and finite.
    data = torch.randint(0, 0x3C, (height, width // 32 * BLOCK_BYTES[kind]), dtype=torch.uint8)
    return QuantTensor(data, kind, (height, width))


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
    kernel: str, shape: str, rows: int, seconds: float, *, num_bytes: float, num_operations: float
) -> dict[str, Any]:
    rates = (num_bytes / seconds / 1e9, num_operations / seconds / 1e9)
    return dict(zip(_COLUMNS, (kernel, shape, rows, seconds * 1e6, *rates), strict=True))


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    torch.set_num_threads(options.threads)
    device = torch.device("cpu")
    dtype = preferred_dtype(device) if options.dtype == "auto" else getattr(torch, options.dtype)
    ops = select_ops(device, is_reference=options.kernels == "reference", num_threads=options.threads)
    seconds, megabytes = options.seconds, options.megabytes
    table = measure_ceilings(dtype, seconds, megabytes)
    for width, height in LINEAR_SHAPES:
        for kind in ("Q8_0" if height > 10_000 else "Q4_1", "dense"):
            table += measure_linear(
                ops, width, height, kind, options.rows, dtype, seconds=seconds, megabytes=megabytes
            )
    for num_sequences, start, end in ATTENTION_SPANS:
        table.append(
            measure_attention(ops, num_sequences, start, end, dtype, seconds=seconds, megabytes=megabytes)
        )
    print(f"{ops.name}, {options.threads} threads, {str(dtype).removeprefix('torch.')}")
    print_table(table, _COLUMNS)
    if options.json:
        write_json(options.json, table)
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Speed of each CPU kernel beside the machine's ceilings.")
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[1, 8, 32, 128, 512], help="rows of a linear layer"
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--dtype", choices=["auto", "float32", "bfloat16"], default="auto")
    parser.add_argument("--kernels", choices=["auto", "reference"], default="auto")
    parser.add_argument("--seconds", type=float, default=0.3, help="of each measurement")
    parser.add_argument(
        "--megabytes", type=int, default=default_megabytes(), help="of weights or cache to go round"
    )
    parser.add_argument("--json", type=Path, help="write the rows here")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
