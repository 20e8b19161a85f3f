"""Every way in which the GPU's kernels are started, without a GPU: operations on tensors that hold no values.

Together the cases use each configuration of the stored table. Must not know what is done with a start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from bench.gpu_drawing_cases import drawing_cases
from bench.gpu_linear_cases import linear_cases
from triolet_kernels.gpu.activation import ActivationKernels
from triolet_kernels.gpu.attention import AttentionKernels
from triolet_kernels.gpu.launch import GpuDevice
from triolet_kernels.gpu.norm import NormKernels
from triolet_kernels.gpu.rotary import RotaryKernels
from triolet_kernels.gpu.rows import RowKernels
from triolet_kernels.ops import AttentionBatch

__all__ = ["Case", "all_cases"]

Case = tuple[str, Callable[[], object]]
"""What a case is called, and what starts its kernels."""

META = torch.device("meta")
NUM_TOKENS, NUM_BLOCKS, BLOCK_SIZE = 48, 64, 16


def all_cases(device: GpuDevice) -> Iterator[Case]:
    """The cases of all kernels, on a device that computes nothing."""
    yield from _row_cases(device)
    yield from _rotary_cases(device)
    yield from _attention_cases(device)
    yield from linear_cases(device)
    yield from drawing_cases(device)


def _empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def _row_cases(device: GpuDevice) -> Iterator[Case]:
    norm, activation, rows = NormKernels(device), ActivationKernels(device), RowKernels(device)
    for size in (576, 2048, 4096, 8192, 16384):
        x, weight, residual = _empty(8, size), _empty(size), _empty(8, size, dtype=torch.float32)

        def start(x: torch.Tensor = x, weight: torch.Tensor = weight, total: torch.Tensor = residual) -> None:
            norm.rms_norm(total, weight, 1e-5, torch.bfloat16)
            norm.add_rms_norm(x, total, weight, 1e-5)
            norm.norm_columns(x, 0, weight, 1e-5)

        yield f"norm of {size}", start
    yield "silu_mul", lambda: activation.silu_mul(_empty(8, 28672))
    yield "gelu_mul", lambda: activation.gelu_mul(_empty(8, 28672))
    yield "take_rows", lambda: rows.take_rows(_empty(8, 4096), _empty(4, dtype=torch.int64))


def _cache_dtypes(device: GpuDevice) -> list[torch.dtype]:
    """The number formats of a KV cache that the architecture can convert to and from."""
    float8 = [torch.float8_e5m2]
    if device.configurations.architecture != "sm_80":
        float8.append(torch.float8_e4m3fn)
    return [torch.bfloat16, torch.float16, *float8]


def _rotary_cases(device: GpuDevice) -> Iterator[Case]:
    rotary = RotaryKernels(device)

    def start(dtype: torch.dtype, head_dim: int, norm: torch.Tensor | None) -> None:
        cache = _empty(NUM_BLOCKS, 8, BLOCK_SIZE, head_dim, dtype=dtype)
        rotary.rotary_and_cache(
            _empty(NUM_TOKENS, 48 * head_dim), _batch(1), _empty(4096, head_dim, dtype=torch.float32),
            cache, cache,
            num_heads=32, q_norm=norm, k_norm=norm, eps=1e-6,
        )  # fmt: skip

    for dtype in _cache_dtypes(device):
        yield f"rotary to {dtype}", lambda d=dtype: start(d, 128, None)  # type: ignore[misc]
        yield f"norms and rotary to {dtype}", lambda d=dtype: start(d, 128, _empty(128))  # type: ignore[misc]


def _attention_cases(device: GpuDevice) -> Iterator[Case]:
    attention = AttentionKernels(device)

    def start(
        head_dim: int,
        dtypes: tuple[torch.dtype, torch.dtype],
        group: int,
        window: int | None,
        cap: float | None,
    ) -> None:
        dtype, cache_dtype = dtypes
        cache = _empty(NUM_BLOCKS, 8, BLOCK_SIZE, head_dim, dtype=cache_dtype)
        attention.paged_attention(
            _empty(NUM_TOKENS, 8 * group, head_dim, dtype=dtype), cache, cache, _batch(40),
            scale=head_dim**-0.5, window=window, soft_cap=cap,
        )  # fmt: skip

    def case(
        head_dim: int,
        dtypes: tuple[torch.dtype, torch.dtype],
        group: int = 4,
        window: int | None = None,
        cap: float | None = None,
    ) -> Case:
        extra = f"{', window' if window else ''}{', soft cap' if cap else ''}"
        name = f"attention {head_dim}, {group} heads a group, {dtypes[0]} on {dtypes[1]}{extra}"
        return name, lambda: start(head_dim, dtypes, group, window, cap)

    bfloat16 = (torch.bfloat16, torch.bfloat16)
    for head_dim in (16, 32, 64, 128, 256):
        yield case(head_dim, bfloat16)
    for head_dim in (16, 32, 64, 128):
        yield case(head_dim, (torch.float32, torch.float32))
    for head_dim in (64, 128, 256):
        yield case(head_dim, (torch.bfloat16, _cache_dtypes(device)[-1]))
    yield case(128, (torch.bfloat16, torch.float8_e5m2))
    yield case(128, (torch.float16, torch.float16))
    yield case(80, bfloat16)
    yield case(128, bfloat16, 7)
    yield case(128, bfloat16, window=4096)
    yield case(256, bfloat16, group=2, window=4096, cap=50.0)


def _batch(max_query_length: int) -> AttentionBatch:
    """Two sequences, one of which may be long."""
    return AttentionBatch(
        positions=_empty(NUM_TOKENS, dtype=torch.int64),
        cache_slots=_empty(NUM_TOKENS, dtype=torch.int64),
        block_tables=_empty(2, 256, dtype=torch.int32),
        query_starts=_empty(3, dtype=torch.int32),
        sequence_lengths=_empty(2, dtype=torch.int32),
        max_query_length=max_query_length,
        max_sequence_length=4096,
    )
