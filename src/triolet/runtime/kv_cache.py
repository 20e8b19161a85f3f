"""The KV cache: what its blocks are made of, and the tensors that hold them.

Layers with the same window share block tables, as a group with blocks of its own. This module knows the
shape of a model, not its weights, and nothing of the sequences that own the blocks.
Paged KV cache: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
PagedAttention" (SOSP 2023).
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from triolet.models.config import ModelConfig
from triolet.plan import LayerGroup, num_blocks_needed
from triolet_kernels.reference.cache_codes import entry_size

__all__ = ["KVCacheConfig", "KVCacheTensors", "allocate_kv_cache", "scratch_cache"]

KVCacheTensors = tuple[tuple[Tensor, Tensor], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheConfig:
    """What decides how large the blocks are, and how many of them a sequence takes.

    ``windows``: that of each layer. Groups are numbered as in :attr:`ModelConfig.group_windows`.
    ``draft_bytes_per_block``: what a block of each group takes in the tensors of a draft model, if any.
    """

    windows: tuple[int | None, ...]
    group_windows: tuple[int | None, ...]
    num_kv_heads: int
    head_dim: int
    block_size: int
    max_num_batched_tokens: int
    dtype: torch.dtype
    device: torch.device
    draft_bytes_per_block: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        model: ModelConfig,
        *,
        block_size: int,
        max_num_batched_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> KVCacheConfig:
        return cls(
            windows=model.windows,
            group_windows=model.group_windows,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            block_size=block_size,
            max_num_batched_tokens=max_num_batched_tokens,
            dtype=dtype,
            device=device,
        )

    @property
    def entry_size(self) -> int:
        """Elements that the key or value of one head and token takes."""
        return entry_size(self.head_dim, self.dtype)

    @property
    def bytes_per_layer_block(self) -> int:
        """Bytes of the keys and values of one block in one layer."""
        return 2 * self.num_kv_heads * self.block_size * self.entry_size * self.dtype.itemsize

    def bytes_per_block(self, group: int) -> int:
        """Bytes of one block over all layers of the group, those of a draft model included."""
        draft_bytes = self.draft_bytes_per_block[group] if self.draft_bytes_per_block else 0
        return self.num_layers_of(group) * self.bytes_per_layer_block + draft_bytes

    def num_layers_of(self, group: int) -> int:
        return self.windows.count(self.group_windows[group])

    def num_blocks_for(self, num_tokens: int, group: int) -> int:
        """Most blocks of the group that one sequence of ``num_tokens`` owns at any time."""
        return num_blocks_needed(
            num_tokens,
            block_size=self.block_size,
            window=self.group_windows[group],
            max_num_batched_tokens=self.max_num_batched_tokens,
        )

    def bytes_for(self, num_tokens: int) -> int:
        """Most bytes that one sequence of ``num_tokens`` takes at any time, over all groups."""
        return self.total_bytes(
            [self.num_blocks_for(num_tokens, group) for group in range(len(self.group_windows))]
        )

    def total_bytes(self, num_blocks: Sequence[int]) -> int:
        """Bytes of so many blocks of each group."""
        return sum(self.bytes_per_block(group) * count for group, count in enumerate(num_blocks))

    def layer_groups(
        self, num_blocks: Sequence[int], share_before_eviction: float = 1.0
    ) -> tuple[LayerGroup, ...]:
        """What the scheduler needs to know of a cache with so many blocks of each group.

        ``share_before_eviction`` is that of the blocks that are used before kept prefixes make room.
        """
        share = share_before_eviction
        return tuple(
            LayerGroup(
                num_blocks=count,
                window=window,
                num_before_eviction=math.ceil(share * count) if share < 1 else None,
            )
            for count, window in zip(num_blocks, self.group_windows, strict=True)
        )


def allocate_kv_cache(config: KVCacheConfig, num_blocks: Sequence[int]) -> KVCacheTensors:
    """Key and value tensors of each layer, zeros, ``(num_blocks of its group, G, B, entry size)``.

    On a CPU the memory is reserved, not used: pages come from the system when they are first written.
    """
    layers = {group: iter(_allocate_group(config, group, count)) for group, count in enumerate(num_blocks)}
    return tuple(next(layers[config.group_windows.index(window)]) for window in config.windows)


def scratch_cache(kv_cache: KVCacheTensors) -> KVCacheTensors:
    """Room for one block in each layer, beside a cache and like it."""
    return tuple((torch.zeros_like(key[:1]), torch.zeros_like(value[:1])) for key, value in kv_cache)


def _allocate_group(config: KVCacheConfig, group: int, num_blocks: int) -> KVCacheTensors:
    num_layers = config.num_layers_of(group)
    shape = (num_layers, 2, num_blocks, config.num_kv_heads, config.block_size, config.entry_size)
    if config.device.type == "cpu":
        # Private: first writes to shared pages by two threads at once were seen to take twenty times as long.
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        pages = mmap.mmap(-1, num_layers * num_blocks * config.bytes_per_layer_block, flags=private)
        cache = torch.frombuffer(pages, dtype=config.dtype).view(shape)
    else:
        cache = torch.zeros(shape, dtype=config.dtype, device=config.device)
    return tuple((layer[0], layer[1]) for layer in cache)
