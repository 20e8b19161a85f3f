"""Size and memory of the KV cache."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from triolet.args import EngineArgs
from triolet.errors import UsageError
from triolet.models.config import ModelConfig, RopeConfig
from triolet.runtime.kv_cache import (
    KVCacheConfig,
    allocate_kv_cache,
    choose_max_model_len,
    choose_num_blocks,
)

GIB = 2**30


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


def cache_config(dtype: torch.dtype = torch.bfloat16, device: str = "cpu", **changes: Any) -> KVCacheConfig:
    return KVCacheConfig.of(model_config(**changes), block_size=32, dtype=dtype, device=torch.device(device))


def num_blocks(available: int, *, max_model_len: int = 8192, device: str = "cpu", **options: Any) -> int:
    return choose_num_blocks(
        EngineArgs(**options),
        cache_config(device=device),
        max_model_len=max_model_len,
        available_bytes=available,
    )


def test_block_holds_keys_and_values_of_all_layers() -> None:
    assert cache_config().bytes_per_block == 32 * 23_040
    assert cache_config(torch.float32).bytes_per_block == 2 * 32 * 23_040


def test_explicit_numbers_are_taken() -> None:
    assert num_blocks(GIB, num_kv_blocks=300) == 300
    assert num_blocks(GIB, kv_cache_bytes=500 * 32 * 23_040 + 5) == 500
    assert num_blocks(GIB, num_kv_blocks=300, kv_cache_bytes=1) == 300


def test_by_default_enough_for_all_sequences_where_that_is_little() -> None:
    assert num_blocks(64 * GIB, max_model_len=100, max_num_seqs=3) == 3 * 4


def test_by_default_no_more_than_a_gibibyte() -> None:
    assert num_blocks(64 * GIB) == GIB // (32 * 23_040)


def test_by_default_one_full_sequence_even_if_larger_than_a_gibibyte() -> None:
    large = model_config(num_layers=32, num_kv_heads=8, head_dim=128, max_position_embeddings=131072)
    config = KVCacheConfig.of(large, block_size=32, dtype=torch.bfloat16, device=torch.device("cpu"))
    chosen = choose_num_blocks(EngineArgs(), config, max_model_len=131072, available_bytes=128 * GIB)
    assert chosen == 131072 // 32


def test_by_default_no_more_than_a_quarter_of_the_memory_on_a_cpu() -> None:
    assert num_blocks(2 * GIB) == GIB // 2 // (32 * 23_040)


def test_by_default_nine_tenths_of_the_memory_on_a_gpu() -> None:
    assert num_blocks(2 * GIB, device="cuda") == int(0.9 * 2 * GIB) // (32 * 23_040)


def test_context_that_does_not_fit_is_an_error_with_the_longest_that_would() -> None:
    with pytest.raises(UsageError, match=r"--max-model-len 5824.*--kv-cache-bytes 188743680") as raised:
        num_blocks(GIB // 2)
    assert raised.value.param == "max_model_len"
    assert num_blocks(GIB // 2, max_model_len=5824) == 5824 // 32
    assert num_blocks(GIB // 2, kv_cache_bytes=188743680) == 256


def test_context_that_does_not_fit_the_blocks_asked_for_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"--max-model-len 320.*--num-kv-blocks 256"):
        num_blocks(GIB, num_kv_blocks=10)
    with pytest.raises(UsageError, match=r"--max-model-len 64.*--kv-cache-bytes 188743680"):
        num_blocks(GIB, kv_cache_bytes=2 * 32 * 23_040)
    with pytest.raises(UsageError, match="not one block fits"):
        num_blocks(GIB, kv_cache_bytes=1000)


@pytest.mark.parametrize("options", [{"num_kv_blocks": 10_000}, {"kv_cache_bytes": 2 * GIB}])
def test_more_than_the_available_memory_is_an_error(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="only 1073741824 bytes of memory") as raised:
        num_blocks(GIB, **options)
    assert [raised.value.param] == list(options)


def test_context_is_the_models_own_unless_a_shorter_one_is_asked_for() -> None:
    assert choose_max_model_len(EngineArgs(), model_config()) == 8192
    assert choose_max_model_len(EngineArgs(max_model_len=100), model_config()) == 100
    with pytest.raises(UsageError, match="use 8192 or less"):
        choose_max_model_len(EngineArgs(max_model_len=8193), model_config())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_are_zero_apart_and_writable(dtype: torch.dtype) -> None:
    config = cache_config(dtype, num_layers=2)
    cache = allocate_kv_cache(config, 5)
    tensors = [tensor for layer in cache for tensor in layer]
    assert len(cache) == 2
    for number, tensor in enumerate(tensors):
        assert tensor.shape == (5, 3, 32, 64)
        assert tensor.dtype == dtype
        assert tensor.is_contiguous()
        assert not tensor.any()
        tensor.fill_(number + 1)
    assert [tensor.float().mean().item() for tensor in tensors] == [1, 2, 3, 4]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_is_taken_when_written_and_given_back() -> None:
    before = resident_bytes()
    cache = allocate_kv_cache(cache_config(num_layers=1), 300_000)
    key = weakref.ref(cache[0][0])
    assert cache[0][0].nbytes > 3 * GIB
    assert resident_bytes() - before < GIB // 32
    cache[0][0].view(-1)[: GIB // 16] = 1
    assert resident_bytes() - before > GIB // 16
    del cache
    gc.collect()
    assert key() is None
    assert resident_bytes() - before < GIB // 32
