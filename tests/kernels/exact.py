"""Every operation written out a second time: float64, one token and one head at a time, no sharing of code.

Slow on purpose; it is what ``reference`` itself is checked against.
"""

from __future__ import annotations

import math

import torch
from tests.kernels.batches import Problem, Spans
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    rows = []
    for row in x.double().reshape(-1, x.shape[-1]):
        norm = math.sqrt(float((row * row).sum()) / len(row) + eps)
        rows.append(row / norm * weight.double())
    return torch.stack(rows).view(x.shape)


def rotate(head: Tensor, position: int, cos_sin: Tensor) -> Tensor:
    """Pairs of dimensions as complex numbers, turned by the position's angle."""
    half = len(head) // 2
    cos, sin = cos_sin[position].double().chunk(2)
    turned = torch.complex(head[:half].double(), head[half:].double()) * torch.complex(cos, sin)
    return torch.cat([turned.real, turned.imag])


def silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.double().chunk(2, dim=-1)
    return gate / (1 + torch.exp(-gate)) * up


def gelu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.double().chunk(2, dim=-1)
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    return 0.5 * gate * (1 + torch.tanh(inner)) * up


def attention(problem: Problem, spans: Spans, *, scale: float = 0.3, window: int | None = None) -> Tensor:
    """One query head of one token after the other → (T, H * D)."""
    shape, rows = problem.shape, []
    for sequence, (start, end) in enumerate(spans):
        for position in range(start, end):
            first = 0 if window is None else max(0, position - window + 1)
            for head in range(shape.num_heads):
                group = head // (shape.num_heads // shape.num_kv_heads)
                keys = problem.keys[sequence][first : position + 1, group].double()
                values = problem.values[sequence][first : position + 1, group].double()
                scores = keys @ problem.queries[sequence][position, head].double() * scale
                rows.append(torch.softmax(scores, dim=0) @ values)
    return torch.stack(rows).view(-1, shape.num_heads * shape.head_dim)
