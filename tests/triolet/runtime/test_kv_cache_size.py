"""How long a sequence may be, and how many blocks there are of each group of layers."""

from __future__ import annotations

from typing import Any

import pytest
from tests.triolet.runtime.kv_sizes import cache_config, model_config

from triolet.args import EngineArgs
from triolet.errors import UsageError
from triolet.runtime.kv_cache_size import (
    choose_max_model_len,
    choose_num_blocks,
    choose_share_before_eviction,
)

GIB = 2**30


def num_blocks(available: int, *, max_model_len: int = 8192, device: str = "cpu", **options: Any) -> int:
    (count,) = choose_num_blocks(
        EngineArgs(**options),
        cache_config(device=device),
        max_model_len=max_model_len,
        available_bytes=available,
    )
    return count


def test_explicit_numbers_are_taken() -> None:
    assert num_blocks(GIB, num_kv_blocks=300) == 300
    assert num_blocks(GIB, kv_cache_bytes=500 * 32 * 23_040 + 5) == 500
    assert num_blocks(GIB, num_kv_blocks=300, kv_cache_bytes=1) == 300


def test_by_default_enough_for_all_sequences_where_that_is_little() -> None:
    assert num_blocks(64 * GIB, max_model_len=100, max_num_seqs=3) == 3 * 4


def test_by_default_no_more_than_a_gibibyte() -> None:
    assert num_blocks(64 * GIB) == GIB // (32 * 23_040)


def test_by_default_one_full_sequence_even_if_larger_than_a_gibibyte() -> None:
    config = cache_config(windows=(None,) * 32, num_kv_heads=8, head_dim=128)
    chosen = choose_num_blocks(EngineArgs(), config, max_model_len=131072, available_bytes=128 * GIB)
    assert chosen == (131072 // 32,)


def test_by_default_no_more_than_a_quarter_of_the_memory_on_a_cpu() -> None:
    assert num_blocks(2 * GIB) == GIB // 2 // (32 * 23_040)


def test_by_default_all_the_memory_there_is_on_a_gpu() -> None:
    assert num_blocks(2 * GIB, device="cuda") == 2 * GIB // (32 * 23_040)


@pytest.mark.parametrize(
    ("max_model_len", "num_blocks", "options", "share"),
    [
        (8192, 1000, {}, 320 * 2**20 / (1000 * 32 * 23_040)),
        (32768, 2048, {}, 1024 / 2048),  # one sequence, if it is larger
        (8192, 300, {}, 1.0),
        (8192, 1000, {"kv_cache_bytes": 1000 * 32 * 23_040}, 1.0),
        (8192, 1000, {"num_kv_blocks": 1000}, 1.0),
    ],
)
def test_by_default_prefixes_are_kept_in_a_share_of_the_cache(
    max_model_len: int, num_blocks: int, options: dict[str, Any], share: float
) -> None:
    args, config = EngineArgs(**options), cache_config()
    chosen = choose_share_before_eviction(args, config, max_model_len=max_model_len, num_blocks=[num_blocks])
    assert chosen == share


def test_prefixes_are_kept_in_all_of_a_gpu_s_cache() -> None:
    config = cache_config(device="cuda")
    share = choose_share_before_eviction(EngineArgs(), config, max_model_len=8192, num_blocks=[9000])
    assert share == 1.0


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


def max_model_len(available: int, *, device: str = "cpu", **options: Any) -> int:
    model = model_config()
    return choose_max_model_len(
        EngineArgs(**options), model, cache_config(device=device), available_bytes=available
    )


def test_context_is_the_models_own_unless_a_shorter_one_is_asked_for() -> None:
    assert max_model_len(GIB) == 8192
    assert max_model_len(GIB, max_model_len=100) == 100
    with pytest.raises(UsageError, match="use 8192 or less"):
        max_model_len(GIB, max_model_len=8193)


@pytest.mark.parametrize(
    ("available", "options", "longest"),
    [
        (8 * GIB, {}, 8192),
        (GIB // 2, {}, 5824),
        (GIB // 2, {"device": "cuda"}, 8192),
        (GIB // 8, {"device": "cuda"}, 5824),
        (GIB, {"num_kv_blocks": 10}, 320),
        (GIB, {"kv_cache_bytes": 3 * 32 * 23_040 - 1}, 64),
    ],
)
def test_auto_is_the_longest_context_that_fits(available: int, options: dict[str, Any], longest: int) -> None:
    assert max_model_len(available, max_model_len="auto", **options) == longest
    (blocks,) = choose_num_blocks(
        EngineArgs(max_model_len="auto", **options),
        cache_config(device=options.get("device", "cpu")),
        max_model_len=longest,
        available_bytes=available,
    )
    assert blocks * 32 >= longest


def test_auto_is_an_error_where_not_one_block_fits() -> None:
    with pytest.raises(UsageError, match="not one block fits"):
        max_model_len(GIB, max_model_len="auto", kv_cache_bytes=1000)


# --- groups of layers with windows -----------------------------------------------------------------------


GEMMA: dict[str, Any] = {"windows": (512, 512, 512, 512, 512, None) * 3, "num_kv_heads": 1, "head_dim": 256}


def gemma_blocks(context: int, **options: Any) -> tuple[int, ...]:
    return choose_num_blocks(
        EngineArgs(**options), cache_config(**GEMMA), max_model_len=context, available_bytes=64 * GIB
    )


def test_with_windows_one_long_sequence_takes_a_fraction() -> None:
    layer_block = cache_config(**GEMMA).bytes_per_layer_block
    bytes_needed = (49 * 15 + 1024 * 3) * layer_block
    assert gemma_blocks(32_768, kv_cache_bytes=bytes_needed) == (49, 1024)
    with pytest.raises(UsageError, match=rf"--max-model-len 32736.*--kv-cache-bytes {bytes_needed}"):
        gemma_blocks(32_768, kv_cache_bytes=bytes_needed - 1)
    assert bytes_needed < 0.21 * 1024 * 18 * layer_block


def test_the_room_beyond_that_is_for_short_sequences_as_well_as_long_ones() -> None:
    local_blocks, global_blocks = gemma_blocks(32_768)
    assert cache_config(**GEMMA).total_bytes([local_blocks, global_blocks]) <= GIB
    assert local_blocks * 32 > 64 * 500, "64 sequences of 500 tokens"
    assert global_blocks * 32 > 4 * 32_768, "4 sequences of full length"


def test_no_window_group_gets_more_than_all_sequences_can_own() -> None:
    local_blocks, global_blocks = gemma_blocks(8192, kv_cache_bytes=4 * GIB, max_num_seqs=2)
    assert local_blocks == 2 * 49
    left = 4 * GIB - cache_config(**GEMMA).total_bytes([local_blocks, 0])
    assert global_blocks == left // cache_config(**GEMMA).bytes_per_block(1)


@pytest.mark.parametrize("context", [1, 31, 500, 512, 2000, 32_768])
@pytest.mark.parametrize("num_blocks", [1100, 5000, 20_000])
def test_every_group_can_hold_the_longest_sequence_and_nothing_is_exceeded(
    context: int, num_blocks: int
) -> None:
    config = cache_config(**GEMMA)
    chosen = gemma_blocks(context, num_kv_blocks=num_blocks)
    assert config.total_bytes(chosen) <= num_blocks * 18 * config.bytes_per_layer_block
    for group, count in enumerate(chosen):
        assert count >= config.num_blocks_for(context, group)


def test_a_model_with_windows_in_all_layers() -> None:
    config = cache_config(windows=(512,) * 30)
    options = EngineArgs(num_kv_blocks=100, max_num_seqs=64)
    assert choose_num_blocks(options, config, max_model_len=8192, available_bytes=GIB) == (100,)
