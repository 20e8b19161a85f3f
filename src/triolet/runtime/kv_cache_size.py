"""How long a sequence may be, and how many KV blocks each group of layers gets.

Every cache holds at least one sequence of the longest length. What there is beyond that is shared out as
sequences of a middling length need it: layers with a window need as many blocks as the others for short
sequences, and far fewer for long ones. This module allocates nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from triolet.args import EngineArgs
from triolet.errors import UsageError
from triolet.models.config import ModelConfig
from triolet.option_fields import flag_of
from triolet.runtime.kv_cache import KVCacheConfig

__all__ = ["choose_max_model_len", "choose_num_blocks", "choose_share_before_eviction", "choose_sizes"]

CPU_MEMORY_SHARE = 0.25
CPU_DEFAULT_BYTES = 2**30
"""By default a CPU's cache is no larger than this, unless one sequence of full length needs more."""
CPU_BYTES_BEFORE_EVICTION = 320 * 2**20
"""By default kept prefixes make room before more of a CPU's cache than this is used for the first time."""


def choose_max_model_len(
    args: EngineArgs, model: ModelConfig, config: KVCacheConfig, *, available_bytes: int
) -> int:
    """The longest prompt plus output, in tokens; with ``auto`` the longest that fits in the memory.

    UsageError where the model was not made for what is asked, or where not one block fits.
    """
    limit = model.max_position_embeddings
    if args.max_model_len == "auto":
        param, cache_bytes = _bytes_asked_for(args, config) or ("max_model_len", None)
        if cache_bytes is None:
            cache_bytes = int(_memory_share(config) * available_bytes)
        longest = _longest_that_fits(config, limit, min(cache_bytes, available_bytes))
        if longest == 0:
            raise _too_long_error(config, config.block_size, cache_bytes, param)
        return longest
    if args.max_model_len is not None and args.max_model_len > limit:
        raise UsageError(
            f"max_model_len (--max-model-len) is {args.max_model_len}, but the model's context is {limit} "
            f"tokens; use {limit} or less",
            param="max_model_len",
        )
    return args.max_model_len or limit


def choose_sizes(
    args: EngineArgs, model: ModelConfig, config: KVCacheConfig, available_bytes: int
) -> tuple[int, tuple[int, ...]]:
    """The longest prompt plus output, and the number of blocks of each group: see the other functions."""
    max_model_len = choose_max_model_len(args, model, config, available_bytes=available_bytes)
    return max_model_len, choose_num_blocks(
        args, config, max_model_len=max_model_len, available_bytes=available_bytes
    )


def choose_num_blocks(
    args: EngineArgs, config: KVCacheConfig, *, max_model_len: int, available_bytes: int
) -> tuple[int, ...]:
    """Number of KV blocks of each group, enough for at least one sequence of ``max_model_len`` tokens.

    Their bytes follow from ``num_kv_blocks`` (in all layers), else ``kv_cache_bytes``, else they are enough
    for ``max_num_seqs`` sequences of full length, but no more than 25 % of the available memory and 1 GiB
    (or one sequence, if that is larger) on a CPU; on a GPU all that is available may be taken. UsageError
    where one sequence does not fit; it says what would.
    """
    one_sequence = config.bytes_for(max_model_len)
    param, cache_bytes = _bytes_asked_for(args, config) or (
        "max_model_len",
        min(_default_limit(config, one_sequence, available_bytes), args.max_num_seqs * one_sequence),
    )
    if cache_bytes > available_bytes:
        raise UsageError(
            f"{param} ({flag_of(param)}) asks for a KV cache of {cache_bytes} bytes, "
            f"but only {available_bytes} bytes of memory are available; lower it",
            param=param,
        )
    if cache_bytes < one_sequence:
        raise _too_long_error(config, max_model_len, cache_bytes, param)
    return _share_out(config, max_model_len, args.max_num_seqs, cache_bytes)


def choose_share_before_eviction(
    args: EngineArgs, config: KVCacheConfig, *, max_model_len: int, num_blocks: Sequence[int]
) -> float:
    """The share of the blocks that is used before kept prefixes make room: all of what was asked for.

    On a CPU memory is the system's until it is used. Where nothing is asked for, what prefixes are kept in is
    no more than 320 MiB, or one sequence of ``max_model_len``; the rest is for sequences that run.
    """
    if config.device.type != "cpu" or _bytes_asked_for(args, config) is not None:
        return 1.0
    limit = max(CPU_BYTES_BEFORE_EVICTION, config.bytes_for(max_model_len))
    return min(1.0, limit / config.total_bytes(num_blocks))


def _bytes_asked_for(args: EngineArgs, config: KVCacheConfig) -> tuple[str, int] | None:
    """The option that sets the cache's size, and the bytes it comes to."""
    if args.num_kv_blocks is not None:
        return "num_kv_blocks", args.num_kv_blocks * _bytes_per_block(config)
    if args.kv_cache_bytes is not None:
        return "kv_cache_bytes", args.kv_cache_bytes
    return None


def _bytes_per_block(config: KVCacheConfig) -> int:
    """Bytes of one block in all layers."""
    return sum(config.bytes_per_block(group) for group in range(len(config.group_windows)))


def _memory_share(config: KVCacheConfig) -> float:
    return CPU_MEMORY_SHARE if config.device.type == "cpu" else 1.0


def _default_limit(config: KVCacheConfig, one_sequence: int, available_bytes: int) -> int:
    """Most bytes that are taken where nothing is asked for."""
    share = int(_memory_share(config) * available_bytes)
    return min(share, max(one_sequence, CPU_DEFAULT_BYTES)) if config.device.type == "cpu" else share


def _share_out(
    config: KVCacheConfig, max_model_len: int, max_num_seqs: int, cache_bytes: int
) -> tuple[int, ...]:
    """Blocks for one sequence of full length, and the rest for as many of a middling length as fit.

    The middling length is the geometric mean of the full one and of the shortest at which a window saves
    anything. No window group gets more than ``max_num_seqs`` sequences can own; a group without a window
    takes what is left over.
    """
    groups = range(len(config.group_windows))
    full = [config.num_blocks_for(max_model_len, group) for group in groups]
    middling = math.isqrt(min(full) * max(full)) * config.block_size
    typical = [config.num_blocks_for(middling, group) for group in groups]
    num_sequences = (cache_bytes - config.total_bytes(full)) / config.total_bytes(typical)
    num_blocks = [
        min(most + int(num_sequences * count), max_num_seqs * most)
        for most, count in zip(full, typical, strict=True)
    ]
    if None in config.group_windows:
        unlimited = config.group_windows.index(None)
        num_blocks[unlimited] = 0
        left = cache_bytes - config.total_bytes(num_blocks)
        num_blocks[unlimited] = left // config.bytes_per_block(unlimited)
    return tuple(num_blocks)


def _longest_that_fits(config: KVCacheConfig, limit: int, cache_bytes: int) -> int:
    """The longest sequence, in whole blocks but for the limit, whose keys and values fit; 0 if none."""
    lengths = range(0, limit + config.block_size, config.block_size)
    return min(limit, lengths[bisect_right(lengths, cache_bytes, key=config.bytes_for) - 1])


def _too_long_error(config: KVCacheConfig, max_model_len: int, cache_bytes: int, param: str) -> UsageError:
    """What does not fit, and both ways out: a shorter context or a larger cache."""
    one_sequence = config.bytes_for(max_model_len)
    needed = one_sequence if param != "num_kv_blocks" else -(-one_sequence // _bytes_per_block(config))
    larger = f"{flag_of('kv_cache_bytes' if param == 'max_model_len' else param)} {needed}"
    longest = _longest_that_fits(config, max_model_len, cache_bytes)
    shorter = f"the longest that fits is --max-model-len {longest}" if longest else "not one block fits"
    return UsageError(
        f"max_model_len (--max-model-len) is {max_model_len} tokens, which take {one_sequence} bytes of KV "
        f"cache, but it has {cache_bytes}: {shorter}; or make the cache larger with {larger}, where the "
        "memory allows it",
        param="max_model_len",
    )
