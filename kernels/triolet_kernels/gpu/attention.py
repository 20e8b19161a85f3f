"""Paged attention: which kernel computes which sequences, and on what grid.

Sequences with a few tokens, as when decoding, are split along the context (``decode_attention``); all others
are cut into tiles of queries (``prefill_attention``). A batch of both runs both: each kernel passes over what
is the other's, and which one it is depends on the sequence alone. Inside a block the cache is laid out as the
reference has it.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

import torch
import triton
from torch import Tensor

from triolet_kernels.gpu.configurations import Configuration
from triolet_kernels.gpu.decode_attention import MAX_SPLITS, decode_attention, merge_splits
from triolet_kernels.gpu.launch import GpuDevice
from triolet_kernels.gpu.prefill_attention import prefill_attention
from triolet_kernels.reference import attention as reference

if TYPE_CHECKING:
    from triolet_kernels.ops import AttentionBatch

__all__ = ["AttentionKernels"]

logger = logging.getLogger("triolet.kernels")

_MIN_ROWS = 16  # of a matrix product
_PROGRAMS_PER_MULTIPROCESSOR = 4
_MIN_PARTS = 8  # so that one long context among many short ones does not wait for a single program


class AttentionKernels:
    """Attention on one device.

    The grids depend on the numbers of tokens and sequences, whether ``max_query_length`` is short, and for
    short queries on ``max_sequence_length``; sequences without tokens are passed over. So a graph that was
    captured for a padded batch and the longest context serves all that fit. Rows of the output for tokens of
    no sequence are left as they are.

    With ``is_batch_invariant`` all tokens go through the kernel for long queries: then a token's result does
    not depend on how many of its sequence are computed in the same step either. Long contexts are decoded
    more slowly.
    """

    def __init__(self, device: GpuDevice, *, is_batch_invariant: bool = False) -> None:
        self._device = device
        self._is_batch_invariant = is_batch_invariant
        self._missing: set[str] = set()
        # Tensor cores round float32 to tf32; three products of its parts have its digits.
        is_nvidia = device.configurations.architecture.startswith("sm_")
        self._float32_precision = "tf32x3" if is_nvidia else "ieee"

    def paged_attention(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        batch: AttentionBatch,
        *,
        scale: float,
        window: int | None,
        soft_cap: float | None = None,
    ) -> Tensor:
        """As in ``ops``; scores x become ``soft_cap * tanh(x / soft_cap)`` if one is given."""
        _, num_kv_heads, block_size, head_dim = key_cache.shape
        padded_dim = max(16, triton.next_power_of_2(head_dim))
        shape_class = f"head {padded_dim}, {key_cache.element_size() * 8} bits"
        decode = self._device.configurations.find("decode_attention", shape_class)
        prefill = self._device.configurations.find("prefill_attention", shape_class)
        if decode is None or prefill is None:
            self._tell_once(shape_class)
            return reference.paged_attention(
                query, key_cache, value_cache, batch, scale=scale, window=window, soft_cap=soft_cap
            )
        group = query.shape[1] // num_kv_heads
        block_m = max(_MIN_ROWS, triton.next_power_of_2(group))
        short = 0 if self._is_batch_invariant else block_m // group
        output = torch.empty_like(query)
        factor = math.log2(math.e) * (scale if soft_cap is None else soft_cap)
        arguments = (factor, 0.0 if soft_cap is None else scale / soft_cap)
        constants = {
            "WINDOW": window or 0,
            "HAS_CAP": soft_cap is not None,
            "NUM_KV_HEADS": num_kv_heads,
            "GROUP": group,
            "BLOCK_SIZE": block_size,
            "HEAD_DIM": head_dim,
            "PADDED_DIM": padded_dim,
            "PRECISION": self._float32_precision if query.dtype == torch.float32 else "ieee",
            "SHORT": short,
        }
        tensors = (query, key_cache, value_cache, output)
        is_mixed = batch.block_tables.shape[0] > 1
        if short and (batch.max_query_length <= short or is_mixed):
            self._decode(decode, tensors, batch, arguments, constants, block_m)
        if batch.max_query_length > short:
            self._prefill(prefill, tensors, batch, arguments, constants)
        return output.flatten(1)

    def _tell_once(self, shape_class: str) -> None:
        if shape_class not in self._missing:
            self._missing.add(shape_class)
            logger.warning("no attention kernel for %s: torch computes it, slowly", shape_class)

    def _decode(
        self,
        configuration: Configuration,
        tensors: tuple[Tensor, ...],
        batch: AttentionBatch,
        arguments: tuple[float, float],
        constants: dict[str, Any],
        block_m: int,
    ) -> None:
        query, _, _, output = tensors
        num_sequences, table_stride = batch.block_tables.shape[0], batch.block_tables.stride(0)
        num_kv_heads, head_dim = constants["NUM_KV_HEADS"], constants["HEAD_DIM"]
        num_rows = constants["GROUP"] * min(constants["SHORT"], batch.max_query_length)
        parts = (num_sequences, num_kv_heads, MAX_SPLITS, num_rows)
        part_outputs = query.new_empty(*parts, head_dim, dtype=torch.float32)
        part_maxima, part_totals = query.new_empty(2, *parts, dtype=torch.float32)
        programs = self._device.num_multiprocessors * _PROGRAMS_PER_MULTIPROCESSOR
        num_parts = min(
            MAX_SPLITS,
            triton.cdiv(batch.max_sequence_length, configuration.constants["MIN_SPLIT"]),
            max(_MIN_PARTS, triton.cdiv(programs, max(1, num_sequences * num_kv_heads))),
        )
        self._device.launch(
            decode_attention, (num_sequences, num_kv_heads, num_parts), configuration,
            *tensors, part_outputs, part_maxima, part_totals,
            batch.block_tables, batch.query_starts, batch.sequence_lengths, table_stride, num_rows,
            *arguments, SPLITS=MAX_SPLITS, BLOCK_M=block_m, **constants,
        )  # fmt: skip
        if batch.max_sequence_length <= configuration.constants["MIN_SPLIT"]:
            return
        merging = Configuration(num_warps=4, num_stages=1, constants=configuration.constants)
        names = ("WINDOW", "NUM_KV_HEADS", "GROUP", "HEAD_DIM", "PADDED_DIM", "SHORT")
        self._device.launch(
            merge_splits, (num_sequences, num_kv_heads, num_rows), merging,
            output, part_outputs, part_maxima, part_totals, batch.query_starts, batch.sequence_lengths,
            num_rows, SPLITS=MAX_SPLITS, **{name: constants[name] for name in names},
        )  # fmt: skip

    def _prefill(
        self,
        configuration: Configuration,
        tensors: tuple[Tensor, ...],
        batch: AttentionBatch,
        arguments: tuple[float, float],
        constants: dict[str, Any],
    ) -> None:
        num_sequences, table_stride = batch.block_tables.shape[0], batch.block_tables.stride(0)
        tile = max(1, configuration.constants["BLOCK_M"] // constants["GROUP"])
        num_tiles = tensors[0].shape[0] // tile + num_sequences
        self._device.launch(
            prefill_attention, (num_tiles, constants["NUM_KV_HEADS"]), configuration,
            *tensors, batch.block_tables, batch.query_starts, batch.sequence_lengths,
            num_sequences, table_stride, *arguments, TILE=tile, **constants,
        )  # fmt: skip
