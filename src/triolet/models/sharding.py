"""Which part of a model each of several shards has, for tensor parallelism.

A shard has whole attention heads, a part of the feed-forward network's inner width, and a part of the
vocabulary's logits; norms and the embedding table are on all of them. Parts are cut so that quantised blocks
stay whole. This module knows neither files nor processes, and loads no torch.

Source: Shoeybi et al. 2019, "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from triolet.errors import UsageError
from triolet.models.config import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Shard", "check_shards", "cut"]

BLOCKS = (256, 32)
"""Values in a quantised block, of any GGUF format; a row is always a whole number of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Shard ``index`` of ``count``.

    ``config``: that of a model that is this part alone, but for its vocabulary, which is whole. ``parts``:
    by the last word of a projection's name, or the last two, which of its rows (the columns, of those that
    lead back to the hidden size) are here. ``sum``: adds up what all shards give it, each their own
    ``(T, hidden)``.
    """

    index: int
    count: int
    config: ModelConfig
    parts: dict[str, slice]
    sum: Callable[[Tensor], Tensor] = field(repr=False)

    @classmethod
    def of(cls, config: ModelConfig, index: int, count: int, sum_shards: Callable[[Tensor], Tensor]) -> Shard:
        """Raises UsageError where the model cannot be cut into so many."""
        check_shards(config, count)
        num_heads, dim = config.num_heads // count, config.head_dim
        num_kv_heads = max(1, config.num_kv_heads // count)
        first_kv_head = index * config.num_kv_heads // count
        queries = slice(index * num_heads * dim, (index + 1) * num_heads * dim)
        keys = slice(first_kv_head * dim, (first_kv_head + num_kv_heads) * dim)
        width = _cut_blocks(config.intermediate_size, count)[index]
        vocabulary = cut(config.vocab_size, count)[index]
        experts, shared = config.experts, slice(0)
        if experts is not None and experts.shared_size:
            shared = _cut_blocks(experts.shared_size, count)[index]
            experts = replace(experts, shared_size=shared.stop - shared.start)
        return cls(
            index=index,
            count=count,
            config=replace(
                config,
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                intermediate_size=width.stop - width.start,
                experts=experts,
            ),
            parts={
                "q_proj": queries,
                "k_proj": keys,
                "v_proj": keys,
                "o_proj": queries,
                "gate_proj": width,
                "up_proj": width,
                "down_proj": width,
                "shared_expert.gate_proj": shared,
                "shared_expert.up_proj": shared,
                "shared_expert.down_proj": shared,
                "embed_tokens": vocabulary,
                "lm_head": vocabulary,
            },
            sum=sum_shards,
        )

    def part_of(self, name: str) -> slice:
        """What of the projection ``name`` is here."""
        words = name.split(".")
        return self.parts.get(".".join(words[-2:])) or self.parts[words[-1]]


def cut(size: int, count: int, multiple: int = 1) -> list[slice]:
    """``count`` parts of ``size``, as equal as whole multiples allow; the last takes what is left over."""
    num_units = size // multiple
    edges = [index * num_units // count * multiple for index in range(count)] + [size]
    return [slice(start, stop) for start, stop in pairwise(edges)]


def _cut_blocks(size: int, count: int) -> list[slice]:
    """Parts that are whole blocks, where the size is a multiple of blocks and there are enough of them."""
    multiple = next((block for block in BLOCKS if size % block == 0 and size >= block * count), 1)
    return cut(size, count, multiple)


def check_shards(config: ModelConfig, count: int) -> None:
    """Raise UsageError where the attention heads cannot be shared out; it says what can be."""
    if count > 1 and config.has_wide_qk_norm:
        raise UsageError(
            f"tensor_parallel_size (--tensor-parallel-size) is {count}, but the model normalises queries "
            "over all its heads at once, so they cannot be shared out; leave the option out",
            param="tensor_parallel_size",
        )
    fits = config.num_heads % count == 0 and (
        config.num_kv_heads % count == 0 or count % config.num_kv_heads == 0
    )
    if not fits:
        possible = [
            size
            for size in range(1, config.num_heads + 1)
            if config.num_heads % size == 0
            and (config.num_kv_heads % size == 0 or size % config.num_kv_heads == 0)
        ]
        raise UsageError(
            f"tensor_parallel_size (--tensor-parallel-size) is {count}, but the model has {config.num_heads} "
            f"attention heads and {config.num_kv_heads} key/value heads, which cannot be shared out evenly "
            f"to so many; possible are {', '.join(map(str, possible))}",
            param="tensor_parallel_size",
        )
