"""Every way in which the GPU's kernels of linear layers, experts and tables are started, without a GPU.

Tensors hold no values. Must not know what is done with a start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from triolet_kernels.gpu.embedding import EmbeddingKernels, PackedEmbedding
from triolet_kernels.gpu.experts import ExpertKernels, PackedExperts
from triolet_kernels.gpu.launch import GpuDevice
from triolet_kernels.gpu.linear import LinearKernels, PackedLinear
from triolet_kernels.gpu.quantized_weight import PackedCodes
from triolet_kernels.gpu.routing import RoutingKernels
from triolet_kernels.gpu.scaled_linear import PackedScaled, ScaledLinearKernels

__all__ = ["linear_cases"]

META = torch.device("meta")
NUM_OUTPUTS, WIDTH = 4096, 4096
CODES = {
    "Q4_0": (4, 32, 8),
    "Q4_1": (4, 32, None),
    "Q8_0": (8, 32, 128),
    "Q5_1": (8, 32, None),
    "Q6_K": (8, 16, 32),
}
"""Formats that differ in what is compiled: bits, size of a group, offset or minimums."""


def linear_cases(device: GpuDevice) -> Iterator[tuple[str, Callable[[], object]]]:
    """Names of cases, and what starts their kernels."""
    yield from _quantized_cases(device)
    yield from _dense_cases(device)
    yield from _scaled_cases(device)


def _empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def _codes(kind: str, num_outputs: int = NUM_OUTPUTS, width: int = WIDTH) -> PackedCodes:
    bits, group_size, offset = CODES[kind]
    scales = _empty(num_outputs, width // group_size, dtype=torch.float16)
    return PackedCodes(
        words=_empty(num_outputs, width * bits // 32, dtype=torch.int32),
        scales=scales,
        minimums=scales if offset is None else None,
        shape=(num_outputs, width),
        bits=bits,
        group_size=group_size,
        offset=offset or 0,
    )


def _quantized_cases(device: GpuDevice) -> Iterator[tuple[str, Callable[[], object]]]:
    kernels, embedding = LinearKernels(device), EmbeddingKernels(device)

    def start(kind: str, num_rows: int, dtype: torch.dtype) -> object:
        return kernels.linear(_empty(num_rows, WIDTH, dtype=dtype), PackedLinear(_codes(kind), None))

    for kind in CODES:
        for num_rows in (1, 16, 64, 256):
            yield f"{num_rows} rows times {kind}", lambda k=kind, n=num_rows: start(k, n, torch.bfloat16)  # type: ignore[misc]
        table = PackedEmbedding(_codes(kind), torch.bfloat16)
        yield (
            f"embedding {kind}",
            lambda t=table: embedding.embedding(_empty(8, dtype=torch.int64), t),  # type: ignore[misc]
        )
    yield "256 float16 rows times Q4_0", lambda: start("Q4_0", 256, torch.float16)


def _dense_cases(device: GpuDevice) -> Iterator[tuple[str, Callable[[], object]]]:
    invariant = LinearKernels(device, is_batch_invariant=True)
    weight, bias = _empty(NUM_OUTPUTS, WIDTH), _empty(NUM_OUTPUTS, dtype=torch.float32)
    for num_rows in (8, 512):
        x, packed = _empty(num_rows, WIDTH), PackedLinear(weight, bias)
        yield f"{num_rows} rows, batch-invariant", lambda x=x, p=packed: invariant.linear(x, p)  # type: ignore[misc]
    yield from _expert_cases(device)
    yield from _routing_cases(device)


def _expert_cases(device: GpuDevice) -> Iterator[tuple[str, Callable[[], object]]]:
    experts, starts = ExpertKernels(device), _empty(129, dtype=torch.int32)
    weights: dict[str, torch.Tensor | PackedCodes] = {"": _empty(128 * 1536, 2048)}
    weights |= {f" of {kind}": _codes(kind, 128 * 1536, 2048) for kind in CODES}

    def start(weight: torch.Tensor | PackedCodes, num_rows: int) -> object:
        return experts.expert_linear(_empty(num_rows, 2048), PackedExperts(weight, 128, (1536, 2048)), starts)

    for name, weight in weights.items():
        for num_rows in (64, 8192):
            yield f"128 experts{name}, {num_rows} rows", lambda w=weight, n=num_rows: start(w, n)  # type: ignore[misc]


def _routing_cases(device: GpuDevice) -> Iterator[tuple[str, Callable[[], object]]]:
    routing = RoutingKernels(device)

    def start(num_experts: int, num_chosen: int, is_normalized: bool) -> object:
        logits = _empty(48, num_experts, dtype=torch.float32)
        routed = routing.route(logits, num_chosen, is_normalized=is_normalized)
        total = routing.sum_experts(_empty(48 * num_chosen, 2048), routed)
        routing.add_shared_expert(total, _empty(48, 2048), _empty(48, 1, dtype=torch.float32))
        return total

    yield "2 of 8 experts are chosen", lambda: start(8, 2, True)
    yield "8 of 128 experts are chosen", lambda: start(128, 8, True)
    yield "8 of 64 experts are chosen, not normalised", lambda: start(64, 8, False)


def _scaled_cases(device: GpuDevice) -> Iterator[tuple[str, Callable[[], object]]]:
    kernels = ScaledLinearKernels(device)
    scales = _empty(NUM_OUTPUTS, dtype=torch.float32)
    int8 = PackedScaled(_empty(NUM_OUTPUTS, WIDTH, dtype=torch.int8), scales, scales, "int8")
    fp8 = PackedScaled(_empty(NUM_OUTPUTS, WIDTH, dtype=torch.float8_e4m3fn), scales, None, "fp8")
    for packed in (int8, fp8):
        if kernels.has(packed.scheme):
            yield packed.scheme, lambda p=packed: kernels.linear(_empty(32, WIDTH), p)  # type: ignore[misc]
