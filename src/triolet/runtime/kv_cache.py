"""The KV cache: how many blocks it has, and the tensors that hold them.

It knows the shape of a model, not its weights, and nothing of the sequences that own the blocks.
Paged KV cache: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
PagedAttention" (SOSP 2023).
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import torch
from torch import Tensor

from triolet.args import EngineArgs, flag_of
from triolet.errors import UsageError
from triolet.models.config import ModelConfig

__all__ = [
    "KVCacheConfig",
    "KVCacheTensors",
    "allocate_kv_cache",
    "choose_max_model_len",
    "choose_num_blocks",
]

CPU_MEMORY_SHARE = 0.25
GPU_MEMORY_SHARE = 0.9
CPU_DEFAULT_BYTES = 2**30
"""By default a CPU's cache is no larger than this, unless one sequence of full length needs more."""

KVCacheTensors = tuple[tuple[Tensor, Tensor], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheConfig:
    """What decides the size of a KV block."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(
        cls, model: ModelConfig, *, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> KVCacheConfig:
        return cls(
            num_layers=model.num_layers,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            block_size=block_size,
            dtype=dtype,
            device=device,
        )

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block, keys and values, over all layers."""
        num_elements = 2 * self.num_layers * self.num_kv_heads * self.block_size * self.head_dim
        return num_elements * self.dtype.itemsize

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that one sequence of ``num_tokens`` takes."""
        return -(-num_tokens // self.block_size)


def choose_max_model_len(args: EngineArgs, model: ModelConfig) -> int:
    """The longest prompt plus output, in tokens. UsageError where the model was not made for it."""
    limit = model.max_position_embeddings
    if args.max_model_len is not None and args.max_model_len > limit:
        raise UsageError(
            f"max_model_len (--max-model-len) is {args.max_model_len}, but the model's context is {limit} "
            f"tokens; use {limit} or less",
            param="max_model_len",
        )
    return args.max_model_len or limit


def choose_num_blocks(
    args: EngineArgs, config: KVCacheConfig, *, max_model_len: int, available_bytes: int
) -> int:
    """Number of KV blocks, at least enough for one sequence of ``max_model_len`` tokens.

    By ``num_kv_blocks``, else by ``kv_cache_bytes``, else enough for ``max_num_seqs`` sequences of full
    length, but no more than 25 % of the available memory and 1 GiB (or one sequence, if that is larger) on
    a CPU, 90 % of it on a GPU. UsageError where one sequence does not fit; it says what would.
    """
    one_sequence = config.num_blocks_for(max_model_len)
    if args.num_kv_blocks is not None:
        param, num_blocks = "num_kv_blocks", args.num_kv_blocks
    elif args.kv_cache_bytes is not None:
        param, num_blocks = "kv_cache_bytes", args.kv_cache_bytes // config.bytes_per_block
    else:
        limit = _default_limit(config, one_sequence, available_bytes)
        param, num_blocks = "max_model_len", min(limit, args.max_num_seqs * one_sequence)
    if num_blocks * config.bytes_per_block > available_bytes:
        raise UsageError(
            f"{param} ({flag_of(param)}) asks for a KV cache of {num_blocks * config.bytes_per_block} bytes, "
            f"but only {available_bytes} bytes of memory are available; lower it",
            param=param,
        )
    if num_blocks < one_sequence:
        raise _too_long_error(config, max_model_len, num_blocks, param)
    return num_blocks


def _default_limit(config: KVCacheConfig, one_sequence: int, available_bytes: int) -> int:
    """Most blocks that are taken where nothing is asked for."""
    if config.device.type != "cpu":
        return int(GPU_MEMORY_SHARE * available_bytes) // config.bytes_per_block
    share = int(CPU_MEMORY_SHARE * available_bytes) // config.bytes_per_block
    return min(share, max(one_sequence, CPU_DEFAULT_BYTES // config.bytes_per_block))


def _too_long_error(config: KVCacheConfig, max_model_len: int, num_blocks: int, param: str) -> UsageError:
    """What does not fit, and both ways out: a shorter context or a larger cache."""
    one_sequence = config.num_blocks_for(max_model_len)
    needed = one_sequence if param == "num_kv_blocks" else one_sequence * config.bytes_per_block
    larger = f"{flag_of('kv_cache_bytes' if param == 'max_model_len' else param)} {needed}"
    longest = num_blocks * config.block_size
    shorter = f"the longest that fits is --max-model-len {longest}" if longest else "not one block fits"
    return UsageError(
        f"max_model_len (--max-model-len) is {max_model_len} tokens, {one_sequence} KV blocks, but the cache "
        f"has {num_blocks}: {shorter}; or make the cache larger with {larger}, where the memory allows it",
        param="max_model_len",
    )


def allocate_kv_cache(config: KVCacheConfig, num_blocks: int) -> KVCacheTensors:
    """Key and value tensors of each layer, zeros, ``(num_blocks, G, B, D)``.

    On a CPU the memory is reserved, not used: pages come from the system when they are first written.
    """
    shape = (
        config.num_layers, 2, num_blocks, config.num_kv_heads, config.block_size, config.head_dim
    )  # fmt: skip
    if config.device.type == "cpu":
        # Private: first writes to shared pages by two threads at once were seen to take twenty times as long.
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        pages = mmap.mmap(-1, num_blocks * config.bytes_per_block, flags=private)
        cache = torch.frombuffer(pages, dtype=config.dtype).view(shape)
    else:
        cache = torch.zeros(shape, dtype=config.dtype, device=config.device)
    return tuple((layer[0], layer[1]) for layer in cache)
