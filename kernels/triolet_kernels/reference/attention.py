"""Causal attention over a paged cache, one sequence after the other, in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from triolet_kernels.reference.cache_codes import decode

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
    soft_cap: float | None = None,
) -> Tensor:
    """As in ``ops``; scores x become ``soft_cap * tanh(x / soft_cap)`` if one is given (Gemma 2)."""
    output = torch.empty_like(query)
    starts = batch.query_starts.tolist()
    lengths = batch.sequence_lengths.tolist()
    for index, length in enumerate(lengths):
        tokens = slice(starts[index], starts[index + 1])
        table = batch.block_tables[index]
        first = _first_key(int(batch.positions[tokens][0]), window, key_cache.shape[2])
        keys = _gather(key_cache, table, first, length)
        values = _gather(value_cache, table, first, length)
        mask = _visible(batch.positions[tokens], first, length, window)
        output[tokens] = _attend(query[tokens].float(), keys, values, mask, scale, soft_cap).to(query.dtype)
    return output.flatten(1)


def _first_key(position: int, window: int | None, block_size: int) -> int:
    """Where the first block starts that the token at ``position`` sees; those before it mean nothing."""
    return 0 if window is None else max(0, position - window + 1) // block_size * block_size


def _gather(cache: Tensor, table: Tensor, first: int, length: int) -> Tensor:
    """Entries ``first``, where a block starts, to ``length`` of a sequence: (entries, G, D) float32."""
    block_size = cache.shape[2]
    blocks = table[first // block_size : -(-length // block_size)].long()
    entries = cache[blocks].transpose(1, 2).flatten(0, 1)[: length - first]
    return decode(entries) if cache.dtype == torch.int8 else entries.float()


def _visible(positions: Tensor, first: int, length: int, window: int | None) -> Tensor:
    """(tokens, length - first) bool: whether each token sees each key from ``first`` on."""
    keys = torch.arange(first, length, device=positions.device)
    distance = positions.unsqueeze(1) - keys
    mask = distance >= 0
    return mask if window is None else mask & (distance < window)


def _attend(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, soft_cap: float | None
) -> Tensor:
    """``query`` (tokens, H, D), ``keys``/``values`` (entries, G, D) → (tokens, H, D)."""
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = keys.shape[1]
    grouped = query.view(num_tokens, num_kv_heads, num_heads // num_kv_heads, head_dim)
    scores = torch.einsum("tgrd,kgd->grtk", grouped, keys) * scale
    if soft_cap is not None:
        scores = torch.tanh(scores / soft_cap) * soft_cap
    probabilities = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
    return torch.einsum("grtk,kgd->tgrd", probabilities, values).reshape(query.shape)
