"""Causal attention over a paged cache, one sequence after the other, in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from triolet_kernels.ops import AttentionBatch

__all__ = ["paged_attention"]


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    window: int | None,
) -> Tensor:
    output = torch.empty_like(query)
    starts = batch.query_starts.tolist()
    lengths = batch.sequence_lengths.tolist()
    for index, length in enumerate(lengths):
        tokens = slice(starts[index], starts[index + 1])
        table = batch.block_tables[index]
        keys = _gather(key_cache, table, length)
        values = _gather(value_cache, table, length)
        mask = _visible(batch.positions[tokens], length, window)
        output[tokens] = _attend(query[tokens].float(), keys, values, mask, scale).to(query.dtype)
    return output.flatten(1)


def _gather(cache: Tensor, table: Tensor, length: int) -> Tensor:
    """The first ``length`` entries of a sequence, (length, G, D) float32."""
    block_size = cache.shape[2]
    blocks = table[: -(-length // block_size)].long()
    return cache[blocks].transpose(1, 2).flatten(0, 1)[:length].float()


def _visible(positions: Tensor, length: int, window: int | None) -> Tensor:
    """(tokens, length) bool: whether each token sees each key."""
    keys = torch.arange(length, device=positions.device)
    distance = positions.unsqueeze(1) - keys
    mask = distance >= 0
    return mask if window is None else mask & (distance < window)


def _attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """``query`` (tokens, H, D), ``keys``/``values`` (length, G, D) → (tokens, H, D)."""
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = keys.shape[1]
    grouped = query.view(num_tokens, num_kv_heads, num_heads // num_kv_heads, head_dim)
    scores = torch.einsum("tgrd,kgd->grtk", grouped, keys) * scale
    probabilities = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
    return torch.einsum("grtk,kgd->tgrd", probabilities, values).reshape(query.shape)
