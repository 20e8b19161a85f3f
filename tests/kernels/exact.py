"""Every operation written out a second time: float64, one token and one head at a time, no sharing of code.

Slow on purpose; it is what ``reference`` itself is checked against.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from triolet_kernels.ops import AttentionBatch


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    rows = []
    for row in x.double().reshape(-1, x.shape[-1]):
        norm = math.sqrt(float((row * row).sum()) / len(row) + eps)
        rows.append(row / norm * weight.double())
    return torch.stack(rows).view(x.shape)


def rotate(head: Tensor, position: int, cos_sin: Tensor) -> Tensor:
    """Pairs of dimensions as complex numbers, turned by the position's angle."""
    half = len(head) // 2
    cos, sin = cos_sin[position].double().split(half)
    turned = torch.complex(head[:half].double(), head[half:].double()) * torch.complex(cos, sin)
    return torch.cat([turned.real, turned.imag])


def silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.double().chunk(2, dim=-1)
    return gate / (1 + torch.exp(-gate)) * up


def gelu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.double().chunk(2, dim=-1)
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    return 0.5 * gate * (1 + torch.tanh(inner)) * up


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    window: int | None = None,
) -> Tensor:
    num_heads, num_kv_heads, block_size = query.shape[1], key_cache.shape[1], key_cache.shape[2]
    output = torch.empty(query.shape, dtype=torch.float64)
    for sequence, table in enumerate(batch.block_tables.tolist()):
        for token in range(int(batch.query_starts[sequence]), int(batch.query_starts[sequence + 1])):
            position = int(batch.positions[token])
            first = 0 if window is None else max(0, position - window + 1)
            places = [(table[p // block_size], p % block_size) for p in range(first, position + 1)]
            for head in range(num_heads):
                group = head // (num_heads // num_kv_heads)
                keys = torch.stack([key_cache[block, group, offset] for block, offset in places]).double()
                values = torch.stack([value_cache[block, group, offset] for block, offset in places]).double()
                weights = torch.softmax(keys @ query[token, head].double() * scale, dim=0)
                output[token, head] = weights @ values
    return output.flatten(1)
