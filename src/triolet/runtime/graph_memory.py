"""How much memory captured decodes take, beside weights, KV cache and steps: the largest one is tried out.

Graphs are captured while serving, when the KV cache has all that is left: what they will take has to be known
before. This module knows nothing of sequences or of who runs steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from triolet.runtime.accelerator import CaptureError, Device
from triolet.runtime.decode_graphs import batch_size_ladder, length_ladder
from triolet.runtime.kv_cache import KVCacheConfig, allocate_kv_cache
from triolet_kernels.ops import AttentionBatch

if TYPE_CHECKING:
    from triolet.runtime.loading import Model

__all__ = ["graph_memory"]

POSITION_BYTES = 64
"""What is sent for each sequence beside its block tables, at most."""


@torch.inference_mode()
def graph_memory(
    device: Device, model: Model, config: KVCacheConfig, *, max_num_seqs: int, max_model_len: int
) -> int:
    """Bytes that are taken once a decode of each size and length has been captured; 0 if none can be.

    Each graph is counted as the one for the most sequences. They have the same block, so that no cache is
    needed to try; what a longer context needs is not larger, but for the block tables.
    """
    num_groups = len(config.group_windows)
    cache = allocate_kv_cache(config, [1] * num_groups)
    batch = _decodes(config, device.torch_device, max_num_seqs, max_model_len)
    token_ids = torch.zeros(max_num_seqs, dtype=torch.int64, device=device.torch_device)
    rows = torch.arange(max_num_seqs, device=device.torch_device)
    try:
        taken = device.graph_memory(lambda: model.forward(token_ids, (batch,) * num_groups, cache, rows))
    except CaptureError:  # which is said when a step is to be captured
        return 0
    num_graphs = len(batch_size_ladder(max_num_seqs)) * len(length_ladder(max_model_len))
    inputs = num_groups * batch.block_tables.nbytes + max_num_seqs * POSITION_BYTES * num_groups
    return taken.pool + num_graphs * taken.each + inputs


def _decodes(
    config: KVCacheConfig, device: torch.device, num_sequences: int, max_model_len: int
) -> AttentionBatch:
    positions = torch.zeros(num_sequences, dtype=torch.int64, device=device)
    num_blocks = -(-max_model_len // config.block_size)
    return AttentionBatch(
        positions=positions,
        cache_slots=positions,
        block_tables=torch.zeros(num_sequences, num_blocks, dtype=torch.int32, device=device),
        query_starts=torch.arange(num_sequences + 1, dtype=torch.int32, device=device),
        sequence_lengths=torch.ones(num_sequences, dtype=torch.int32, device=device),
        max_query_length=1,
        max_sequence_length=max_model_len,
    )
