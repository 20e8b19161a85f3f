"""How much memory a step takes on a device, beside weights and KV cache: the largest one is tried out.

It knows the shape of a step, and nothing of sequences or of who runs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from triolet.errors import UsageError
from triolet.runtime.accelerator import Device
from triolet.runtime.kv_cache import KVCacheConfig, allocate_kv_cache
from triolet_kernels.ops import AttentionBatch

if TYPE_CHECKING:
    from triolet.runtime.loading import Model

__all__ = ["MAX_LOGIT_ROWS", "step_memory"]

MAX_LOGIT_ROWS = 256
"""Logits are made of so many rows at a time: with 128k tokens of vocabulary that is 128 MiB."""


def step_memory(device: Device, model: Model, config: KVCacheConfig, *, max_num_seqs: int) -> int:
    """Bytes that a step of ``config.max_num_batched_tokens`` takes at its peak, with the logits of as many
    rows as are looked at at once, and a copy of them, since their log-probabilities may be asked for. Raises
    UsageError if there is not so much.

    The tokens are sequences of one block, all in the same block, so that no cache is needed to try.
    """

    @torch.inference_mode()
    def try_out() -> None:
        num_groups = len(config.group_windows)
        cache = allocate_kv_cache(config, [1] * num_groups)
        batch = _one_block_each(config, device.torch_device)
        num_tokens = len(batch.positions)
        token_ids = torch.zeros(num_tokens, dtype=torch.int64, device=device.torch_device)
        rows = torch.arange(min(max_num_seqs, num_tokens, MAX_LOGIT_ROWS), device=device.torch_device)
        logits = model.logits(model.forward(token_ids, (batch,) * num_groups, cache, rows))
        logits.clone()

    try:
        return device.peak_memory(try_out)
    except torch.OutOfMemoryError as error:
        raise UsageError(
            f"the GPU has too little memory for a step of {config.max_num_batched_tokens} tokens beside the "
            "weights; lower max_num_batched_tokens, or take a model of fewer or smaller weights",
            param="max_num_batched_tokens",
        ) from error


def _one_block_each(config: KVCacheConfig, device: torch.device) -> AttentionBatch:
    num_tokens, block_size = config.max_num_batched_tokens, config.block_size
    num_sequences = -(-num_tokens // block_size)
    starts = torch.arange(num_sequences + 1, device=device, dtype=torch.int32) * block_size
    starts = starts.clamp(max=num_tokens)
    positions = torch.arange(num_tokens, device=device) % block_size
    return AttentionBatch(
        positions=positions,
        cache_slots=positions,
        block_tables=torch.zeros(num_sequences, 1, dtype=torch.int32, device=device),
        query_starts=starts,
        sequence_lengths=starts.diff(),
        max_query_length=min(num_tokens, block_size),
        max_sequence_length=min(num_tokens, block_size),
    )
