"""Kernels on a GPU: whether they compute what the reference does, and how near to the machine's ceilings.

The reference computes in float32 on the same device from the same inputs; errors are relative to its largest
value. Bytes and operations are those that the task needs, not those that a kernel happens to move.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.gpu_ceilings import Ceilings
from bench.gpu_drawing_equality import drawing_equality
from bench.gpu_timing import Figures, kernel_seconds, num_copies
from triolet.models.config import RopeConfig
from triolet.models.rope import cos_sin_table
from triolet_kernels.ops import AttentionBatch, Ops
from triolet_kernels.quant import BLOCKS, QuantTensor
from triolet_kernels.reference import ReferenceOps

__all__ = [
    "ExpertsCall",
    "Inputs",
    "attention_batch",
    "equality",
    "experts_call",
    "measure_kernels",
]

BLOCK_SIZE = 32
ERROR_LIMIT = 2.0**-6
"""Of the largest value: results are rounded to bfloat16, 2⁻⁹, and so is what passes between kernels."""

ROUGH_LIMIT = 0.15
"""Where weights and inputs are rounded to 8 bits, of which fp8 has 4 digits, and the reference is not."""

QUANT_KINDS = ("Q4_0", "Q8_0", "Q4_K")


class Inputs:
    """Random tensors, always the same ones."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype
        self._generator = torch.Generator(device).manual_seed(7)

    def __call__(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        values = torch.randn(*shape, device=self.device, generator=self._generator)
        return values.to(dtype or self.dtype)

    def quantised(self, num_rows: int, width: int, kind: str) -> QuantTensor:
        """Bytes so low that no scale is large."""
        block_size, block_bytes = BLOCKS[kind]
        shape = (num_rows, width // block_size * block_bytes)
        data = torch.randint(0x28, shape, generator=self._generator, device=self.device, dtype=torch.uint8)
        return QuantTensor(data, kind, (num_rows, width))


def attention_batch(
    query_lengths: Sequence[int], lengths: Sequence[int], device: torch.device
) -> AttentionBatch:
    """Sequences of so many keys, the last of which are this step's, in blocks that lie anywhere."""
    starts = torch.tensor([0, *query_lengths]).cumsum(0)
    width = -(-max(lengths) // BLOCK_SIZE)
    tables = torch.randperm(len(lengths) * width, generator=torch.Generator().manual_seed(3))
    tables = tables.view(len(lengths), width).int()
    positions = torch.cat(
        [torch.arange(length - count, length) for count, length in zip(query_lengths, lengths, strict=True)]
    )
    sequences = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(query_lengths))
    slots = tables[sequences, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE
    return AttentionBatch(
        positions=positions.to(device),
        cache_slots=slots.to(device),
        block_tables=tables.to(device),
        query_starts=starts.int().to(device),
        sequence_lengths=torch.tensor(lengths, dtype=torch.int32).to(device),
        max_query_length=max(query_lengths),
        max_sequence_length=max(lengths),
    )


# ------------------------------------------------------------------------------------------- equality


def equality(figures: Figures, ops: Ops, device: torch.device, dtype: torch.dtype, *, is_tiny: bool) -> None:
    """A row for each operation: its largest error."""
    for case, run in _cases(Inputs(device, dtype), is_tiny):
        try:
            error = _largest_error(run(ops), run(ReferenceOps()))
            limit = ROUGH_LIMIT if "8 bits" in case else ERROR_LIMIT
        except Exception as exc:
            message = f"failed: {type(exc).__name__}: {str(exc)[:200]}"
            figures.add("equality", case, message, share=0.0, goal=1.0)
            continue
        figures.add("equality", case, error, "of max", share=float(error <= limit), goal=1.0)


def _largest_error(results: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    return max(
        float((found.double() - right.double()).abs().max() / right.double().abs().max().clamp(min=1e-9))
        for found, right in zip(results, expected, strict=True)
    )


def _cases(inputs: Inputs, is_tiny: bool) -> Iterator[tuple[str, Callable[[Ops], list[Tensor]]]]:
    hidden, width, num_tokens = (64, 96, 5) if is_tiny else (4096, 14336, 300)
    x, weight = inputs(num_tokens, hidden), inputs(hidden, dtype=torch.float32)
    residual = inputs(num_tokens, hidden, dtype=torch.float32)
    gates, matrix = inputs(num_tokens, 2 * width), inputs(width, hidden) / hidden**0.5
    rows = torch.randint(num_tokens, (7,), device=inputs.device)

    def add_norm(ops: Ops) -> list[Tensor]:
        total, columns = residual.clone(), x.clone()
        ops.norm_columns(columns, hidden // 4, weight[: hidden // 2], 1e-5)
        return [ops.rms_norm(x, weight, 1e-5), ops.add_rms_norm(x, total, weight, 1e-5), total, columns]

    yield "rms_norm, add_rms_norm, norm_columns", add_norm
    yield "silu_mul", lambda ops: [ops.silu_mul(gates)]
    yield "gelu_mul", lambda ops: [ops.gelu_mul(gates)]
    yield "take_rows", lambda ops: [ops.take_rows(x, rows)]
    yield "embedding", lambda ops: [ops.embedding(rows, ops.pack_embedding(matrix, inputs.dtype))]
    for count in (1, num_tokens):
        yield f"linear, {count} rows", partial(_linear, x[:count].contiguous(), matrix, inputs.dtype)
    for kind in QUANT_KINDS:
        blocks = inputs.quantised(96 if is_tiny else 4096, 256 if is_tiny else hidden, kind)
        rows_of_x = inputs(5, blocks.shape[1])
        yield f"linear, {kind}", partial(_quantised_linear, rows_of_x, blocks, inputs.dtype)
    for scheme in ("int8", "fp8"):
        yield f"linear, 8 bits, {scheme}", partial(_scaled_linear, x, matrix, scheme, inputs.dtype)
    yield "route, sum_experts, add_shared_expert", partial(_routed, x, inputs(4 if is_tiny else 128, hidden))
    yield "expert_linear", partial(_experts, inputs, 4 if is_tiny else 64, is_tiny)
    yield from _attention_cases(inputs, is_tiny)
    yield from drawing_equality(inputs, 3 if is_tiny else 64, 300 if is_tiny else 151_936)


def _quantised_linear(x: Tensor, blocks: QuantTensor, dtype: torch.dtype, ops: Ops) -> list[Tensor]:
    """The reference has the values, since it takes blocks apart with a package that may not be there."""
    return _linear(x, _values_of(blocks) if ops.name == ReferenceOps.name else blocks, dtype, ops)


def _values_of(blocks: QuantTensor) -> Tensor:
    """What the codes stand for that the kernels multiply with."""
    from triolet_kernels.gpu.quantized_weight import pack_codes  # Triton comes with it

    packed = pack_codes(blocks, blocks.data.device)
    codes = packed.words.view(torch.uint8)
    if packed.bits == 4:
        codes = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(1)
    groups = codes.float().view(len(codes), -1, packed.group_size)
    scales = packed.scales.float()[..., None]
    if packed.minimums is None:
        return (scales * (groups - packed.offset)).view(packed.shape)
    return (scales * groups + packed.minimums.float()[..., None]).view(packed.shape)


def _scaled_linear(x: Tensor, matrix: Tensor, scheme: str, dtype: torch.dtype, ops: Ops) -> list[Tensor]:
    """By the kernels in 8 bits where there are any, else as it is."""
    pack = getattr(ops, "pack_scaled_linear", None)
    packed = ops.pack_linear(matrix, None, dtype) if pack is None else pack(matrix, None, scheme)
    return [ops.linear(x, packed)]


def _experts(inputs: Inputs, num_tokens: int, is_tiny: bool, ops: Ops) -> list[Tensor]:
    return [experts_call(Inputs(inputs.device, inputs.dtype), ops, num_tokens, is_tiny=is_tiny).run()]


def _routed(x: Tensor, router: Tensor, ops: Ops) -> list[Tensor]:
    routing = ops.route(x, ops.pack_router(router), 2, is_normalized=False)
    total = ops.sum_experts(ops.take_rows(x, routing.tokens), routing)
    ops.add_shared_expert(total, x, x, ops.pack_router(router[:1]))
    return [total]


@dataclass(frozen=True)
class ExpertsCall:
    """Rows of a mixture of experts, and what the step needs: bytes of memory and operations."""

    run: Callable[[], Tensor]
    num_bytes: int
    num_operations: int


def experts_call(inputs: Inputs, ops: Ops, num_tokens: int, *, is_tiny: bool) -> ExpertsCall:
    """The first layer of the experts of Qwen3 30B A3B: of 128 each token has 8."""
    num_experts, each, size_in, size_out = (4, 2, 64, 96) if is_tiny else (128, 8, 2048, 1536)
    order = torch.Generator().manual_seed(5)
    weight = inputs(num_experts, size_out, size_in) / size_in**0.5
    chosen = [torch.randperm(num_experts, generator=order)[:each] for _ in range(num_tokens)]
    counts = torch.cat(chosen).bincount(minlength=num_experts)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).int().to(inputs.device)
    x = inputs(num_tokens * each, size_in)
    packed = ops.pack_experts(list(weight), inputs.dtype)
    num_weights = int((counts > 0).sum()) * size_in * size_out
    return ExpertsCall(
        lambda: ops.expert_linear(x, packed, starts),
        inputs.dtype.itemsize * (num_weights + len(x) * (size_in + size_out)),
        2 * len(x) * size_in * size_out,
    )


def _linear(x: Tensor, matrix: Tensor | QuantTensor, dtype: torch.dtype, ops: Ops) -> list[Tensor]:
    return [ops.linear(x, ops.pack_linear(matrix, None, dtype))]


def _attention_cases(inputs: Inputs, is_tiny: bool) -> Iterator[tuple[str, Callable[[Ops], list[Tensor]]]]:
    heads, kv_heads, size = (4, 2, 16) if is_tiny else (32, 8, 128)
    long = 40 if is_tiny else 1500
    shapes = {
        "decode": ([1, 1, 1], [long, 1, 33]),
        "prefill": ([long, 3], [long, 3]),
        "chunk": ([9, 1], [long, 20]),
    }
    for name, (counts, lengths) in shapes.items():
        batch = attention_batch(counts, lengths, inputs.device)
        num_blocks = int(batch.block_tables.max()) + 1
        shape = (num_blocks, kv_heads, BLOCK_SIZE, size)
        keys, values = inputs(*shape), inputs(*shape)
        query = inputs(sum(counts), heads, size)
        for window in (None, 21):
            attend = partial(_attend, query, keys, values, batch, window)
            yield f"paged_attention {name}, window {window}", attend
        qkv = inputs(sum(counts), (heads + 2 * kv_heads) * size)
        norms = inputs(2, size, dtype=torch.float32) / 8 + 1
        table = cos_sin_table(RopeConfig(theta=10_000.0, dim=size), long + 1, inputs.device)
        for has_norms in (False, True):
            given = norms if has_norms else None
            rotate = partial(_rotate, qkv, batch, table, keys, values, heads, given)
            yield f"rotary_and_cache {name}{', head norms' if has_norms else ''}", rotate


def _attend(
    query: Tensor, keys: Tensor, values: Tensor, batch: AttentionBatch, window: int | None, ops: Ops
) -> list[Tensor]:
    return [ops.paged_attention(query, keys, values, batch, scale=query.shape[2] ** -0.5, window=window)]


def _rotate(
    qkv: Tensor,
    batch: AttentionBatch,
    table: Tensor,
    keys: Tensor,
    values: Tensor,
    num_heads: int,
    norms: Tensor | None,
    ops: Ops,
) -> list[Tensor]:
    """Queries, and what attention finds in the cache afterwards: its layout is the kernels' own affair."""
    keys, values = keys.clone(), values.clone()
    q_norm, k_norm = (None, None) if norms is None else norms.unbind()
    query = ops.rotary_and_cache(
        qkv, batch, table, keys, values, num_heads=num_heads, q_norm=q_norm, k_norm=k_norm
    )
    seen = ops.paged_attention(query, keys, values, batch, scale=0.1, window=1)
    return [query, seen]


# ------------------------------------------------------------------------------------------- speed


def measure_kernels(
    figures: Figures,
    ops: Ops,
    device: torch.device,
    dtype: torch.dtype,
    ceilings: Ceilings,
    *,
    is_tiny: bool,
) -> None:
    """Linear layers and attention, beside the ceilings."""
    inputs = Inputs(device, dtype)
    shapes = [(64, 96)] if is_tiny else [(4096, 6144), (4096, 28672), (14336, 4096)]
    for size_in, size_out in shapes:
        dense = inputs(size_out, size_in)
        weights: dict[str, Tensor | QuantTensor] = {"": dense}
        if size_in % 256 == 0:
            weights |= {f" {kind}": inputs.quantised(size_out, size_in, kind) for kind in QUANT_KINDS[:2]}
        for name, weight in weights.items():
            _in_time(figures, partial(_measure_linear, figures, ops, inputs, weight, name, ceilings, is_tiny))
        del dense, weights
    for num_tokens in (2,) if is_tiny else (1, 8, 64, 4096):
        _in_time(figures, partial(_measure_experts, figures, ops, inputs, num_tokens, ceilings, is_tiny))
    _in_time(figures, partial(_measure_attention, figures, ops, inputs, ceilings, is_tiny))


def _in_time(figures: Figures, measure: Callable[[], None]) -> None:
    """One that fails leaves the others theirs."""
    with figures.section("kernels") as has_time:
        if has_time:
            measure()


def _measure_experts(
    figures: Figures, ops: Ops, inputs: Inputs, num_tokens: int, ceilings: Ceilings, is_tiny: bool
) -> None:
    call = experts_call(inputs, ops, num_tokens, is_tiny=is_tiny)
    num_more = num_copies(call.num_bytes, inputs.device) - 1
    more = [experts_call(inputs, ops, num_tokens, is_tiny=is_tiny) for _ in range(num_more)]
    taken = kernel_seconds([each.run for each in (call, *more)], inputs.device)
    _add(figures, f"experts, {num_tokens} tokens", taken, call.num_bytes, call.num_operations, ceilings)


def _measure_linear(
    figures: Figures,
    ops: Ops,
    inputs: Inputs,
    weight: Tensor | QuantTensor,
    name: str,
    ceilings: Ceilings,
    is_tiny: bool,
) -> None:
    size_out, size_in = weight.shape
    weight_bytes = weight.data.nbytes
    packed = [
        ops.pack_linear(_copy(weight), None, inputs.dtype)
        for _ in range(num_copies(weight_bytes, inputs.device))
    ]
    for num_rows in (1, 8) if is_tiny else (1, 8, 64, 256, 4096):
        x = inputs(num_rows, size_in)
        taken = kernel_seconds([partial(ops.linear, x, each) for each in packed], inputs.device)
        num_bytes = weight_bytes + inputs.dtype.itemsize * num_rows * (size_in + size_out)
        case = f"linear{name} {size_in} → {size_out}, {num_rows} rows"
        _add(figures, case, taken, num_bytes, 2 * num_rows * size_in * size_out, ceilings)


def _copy(weight: Tensor | QuantTensor) -> Tensor | QuantTensor:
    return replace(weight, data=weight.data.clone()) if isinstance(weight, QuantTensor) else weight.clone()


def _measure_attention(figures: Figures, ops: Ops, inputs: Inputs, ceilings: Ceilings, is_tiny: bool) -> None:
    heads = (4, 2, 16) if is_tiny else (32, 8, 128)
    decodes = [(1, 40)] if is_tiny else [(1, 512), (1, 32768), (8, 4096), (64, 512), (64, 4096), (256, 512)]
    shapes = [(count, 1, context) for count, context in decodes]
    for lengths in (*shapes, (1, 40, 40) if is_tiny else (1, 4096, 4096)):
        count, num_queries, context = lengths
        case = f"attention {'decode' if num_queries == 1 else 'prefill'}, {count} × {context}"
        measure = partial(_measure_attending, figures, ops, inputs, case, lengths, heads, ceilings)
        _in_time(figures, measure)


def _measure_attending(
    figures: Figures,
    ops: Ops,
    inputs: Inputs,
    case: str,
    lengths: tuple[int, int, int],
    heads: tuple[int, int, int],
    ceilings: Ceilings,
) -> None:
    """``lengths``: sequences, queries and keys of each. ``heads``: of queries, of keys, and their size."""
    (count, num_queries, context), (num_heads, kv_heads, size) = lengths, heads
    batch = attention_batch([num_queries] * count, [context] * count, inputs.device)
    shape = (int(batch.block_tables.max()) + 1, kv_heads, BLOCK_SIZE, size)
    query = inputs(count * num_queries, num_heads, size)
    cache_bytes = inputs.dtype.itemsize * 2 * math.prod(shape)
    caches = [(inputs(*shape), inputs(*shape)) for _ in range(num_copies(cache_bytes, inputs.device))]
    num_bytes = inputs.dtype.itemsize * (2 * count * context * kv_heads * size + 2 * query.numel())
    pairs = count * (context if num_queries == 1 else context * (context + 1) // 2)
    taken = _attention_seconds(ops, query, caches, batch)
    _add(figures, case, taken, num_bytes, 4 * pairs * num_heads * size, ceilings)
    if num_queries == 1:
        graph_batch = replace(batch, max_sequence_length=context * 4)
        taken = _attention_seconds(ops, query, caches, graph_batch)
        _add(figures, f"{case}, in a graph of 4 × the length", taken, num_bytes, 0, ceilings)


def _attention_seconds(
    ops: Ops, query: Tensor, caches: Sequence[tuple[Tensor, Tensor]], batch: AttentionBatch
) -> tuple[float, bool]:
    scale = query.shape[2] ** -0.5
    calls = [partial(ops.paged_attention, query, keys, values, batch, scale=scale) for keys, values in caches]
    return kernel_seconds(calls, query.device)


def _add(
    figures: Figures,
    case: str,
    timed: tuple[float, bool],
    num_bytes: int,
    num_operations: int,
    ceilings: Ceilings,
) -> None:
    """Beside the ceiling that would be reached first."""
    taken, is_captured = timed
    by_memory, by_arithmetic = num_bytes / ceilings[0], num_operations / ceilings[1]
    share = max(by_memory, by_arithmetic) / taken
    more: dict[str, Any] = {"bound": "memory" if by_memory > by_arithmetic else "arithmetic"}
    if not is_captured:
        more["includes"] = "what the host takes to start it"
    figures.add(
        "kernels", case, taken * 1e6, "µs", share=share,
        GBps=num_bytes / taken / 1e9, TFLOPps=num_operations / taken / 1e12, **more,
    )  # fmt: skip
