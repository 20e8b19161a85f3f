"""Root-mean-square normalisation (Zhang and Sennrich 2019) in float32."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["add_rms_norm", "norm_columns", "normalize", "rms_norm"]


def normalize(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm of float32 ``x`` over its last dimension, in float32."""
    mean_square = x.square().mean(dim=-1, keepdim=True)
    return x * torch.rsqrt(mean_square + eps) * weight.float()


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype | None = None) -> Tensor:
    return normalize(x.float(), weight, eps).to(dtype or x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    residual += x
    return rms_norm(residual, weight, eps, x.dtype)


def norm_columns(x: Tensor, first: int, weight: Tensor, eps: float) -> None:
    columns = x[:, first : first + len(weight)]
    columns.copy_(rms_norm(columns, weight, eps))
