"""Shape and memory of the KV cache."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path

import pytest
import torch
from tests.triolet.runtime.kv_sizes import cache_config

from triolet.plan import LayerGroup
from triolet.runtime.kv_cache import allocate_kv_cache

GIB = 2**30
GEMMA_WINDOWS = (512, 512, 512, 512, 512, None) * 3


def test_a_block_holds_keys_and_values_of_the_layers_of_its_group() -> None:
    assert cache_config().bytes_per_block(0) == 32 * 23_040
    assert cache_config(torch.float32).bytes_per_block(0) == 2 * 32 * 23_040
    assert cache_config(torch.int8).bytes_per_block(0) == 32 * 30 * 2 * 3 * (64 + 2)
    config = cache_config(windows=GEMMA_WINDOWS)
    assert config.group_windows == (512, None)
    assert config.bytes_per_block(0) == 15 * config.bytes_per_layer_block
    assert config.bytes_per_block(1) == 3 * config.bytes_per_layer_block
    assert config.total_bytes([2, 7]) == (2 * 15 + 7 * 3) * config.bytes_per_layer_block


def test_a_window_bounds_what_a_long_sequence_takes() -> None:
    config = cache_config(windows=GEMMA_WINDOWS)
    assert [config.num_blocks_for(64, group) for group in (0, 1)] == [2, 2]
    # 511 before and 1024 in flight, which may start late in a block.
    assert [config.num_blocks_for(32_768, group) for group in (0, 1)] == [49, 1024]
    assert config.bytes_for(32_768) == config.total_bytes([49, 1024])


def test_the_scheduler_is_told_of_all_groups() -> None:
    groups = cache_config(windows=GEMMA_WINDOWS).layer_groups([5, 7])
    assert groups == (LayerGroup(num_blocks=5, window=512), LayerGroup(num_blocks=7))
    groups = cache_config(windows=GEMMA_WINDOWS).layer_groups([5, 8], 0.5)
    assert [group.num_before_eviction for group in groups] == [3, 4]


def test_layers_have_the_blocks_of_their_group() -> None:
    cache = allocate_kv_cache(cache_config(windows=(4, 4, None, 4)), [3, 5])
    assert [keys.shape[0] for keys, _ in cache] == [3, 3, 5, 3]
    for number, layer in enumerate(cache):
        for tensor in layer:
            tensor.fill_(number)
    assert [[tensor.float().mean().item() for tensor in layer] for layer in cache] == [
        [number, number] for number in range(4)
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_tensors_are_zero_apart_and_writable(dtype: torch.dtype) -> None:
    config = cache_config(dtype, windows=(None, None))
    cache = allocate_kv_cache(config, [5])
    tensors = [tensor for layer in cache for tensor in layer]
    assert len(cache) == 2
    for number, tensor in enumerate(tensors):
        assert tensor.shape == (5, 3, 32, config.entry_size)
        assert tensor.dtype == dtype
        assert tensor.is_contiguous()
        assert not tensor.any()
        tensor.fill_(number + 1)
    assert [tensor.float().mean().item() for tensor in tensors] == [1, 2, 3, 4]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_is_taken_when_written_and_given_back() -> None:
    before = resident_bytes()
    cache = allocate_kv_cache(cache_config(windows=(None,)), [300_000])
    key = weakref.ref(cache[0][0])
    assert cache[0][0].nbytes > 3 * GIB
    assert resident_bytes() - before < GIB // 32
    cache[0][0].view(-1)[: GIB // 16] = 1
    assert resident_bytes() - before > GIB // 16
    del cache
    gc.collect()
    assert key() is None
    assert resident_bytes() - before < GIB // 32
