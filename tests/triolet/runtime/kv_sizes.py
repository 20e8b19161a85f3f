"""The sizes of a model and of its KV cache, for tests of both."""

from __future__ import annotations

from typing import Any

import torch

from triolet.models.config import ModelConfig, RopeConfig
from triolet.runtime.kv_cache import KVCacheConfig

__all__ = ["cache_config", "model_config", "small_cache_config"]


def model_config(**changes: Any) -> ModelConfig:
    """The sizes of SmolLM2-135M."""
    sizes: dict[str, Any] = {
        "architecture": "llama",
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_layers": 30,
        "num_heads": 9,
        "num_kv_heads": 3,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192,
        "rope": RopeConfig(theta=100000.0, dim=64),
        "windows": (None,) * 30,
        "attention_scale": 0.125,
    }
    return ModelConfig(**sizes | changes)


def cache_config(
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cpu",
    *,
    max_num_batched_tokens: int = 512,
    **changes: Any,
) -> KVCacheConfig:
    """Of such a model with ``changes``, in blocks of 32 tokens."""
    return KVCacheConfig.of(
        model_config(**changes),
        block_size=32,
        max_num_batched_tokens=max_num_batched_tokens,
        dtype=dtype,
        device=torch.device(device),
    )


def small_cache_config() -> KVCacheConfig:
    """Of two layers, one of which sees three positions, and so of two groups of blocks."""
    return KVCacheConfig(
        windows=(None, 3),
        group_windows=(None, 3),
        num_kv_heads=1,
        head_dim=4,
        block_size=8,
        max_num_batched_tokens=27,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
