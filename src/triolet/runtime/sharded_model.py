"""A model whose shards are in several processes: one leads, the others follow.

The cut is below the runner: what is sent is the tensors of a batch, so that followers keep nothing between
steps but weights and KV cache, and scheduling, sampling, grammars and guesses are shard 0's alone. A shard
that fails in the middle of a step takes part in the sums to come, with zeros, so that nobody waits for it;
the step then fails as a whole, in the leader, with that shard's error.

This module knows neither processes nor how they found each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from triolet.models.sharding import cut
from triolet.runtime.batch_words import join_batch
from triolet.runtime.kv_cache import KVCacheTensors
from triolet.runtime.shard_group import ShardGroup, attempt
from triolet_kernels.ops import AttentionBatch

__all__ = ["LeadingModel", "Order", "ShardModel", "compute_hidden", "compute_logits", "words"]

T = TypeVar("T")

NUM_WORDS = 8


class Order(IntEnum):
    """What all shards are to do next. ``PROBE`` is ``FORWARD`` over a KV cache that is thrown away."""

    END = 0
    FORWARD = 1
    PROBE = 2
    LOGITS = 3
    RELEASE = 4
    RESTORE_WEIGHTS = 5
    RESTORE_KV_CACHE = 6


class ShardModel(Protocol):
    """The part of a model that one shard has; see :class:`~triolet.models.decoder.Decoder`."""

    @property
    def dtype(self) -> torch.dtype:
        """Of what is summed."""
        ...

    def forward(
        self, token_ids: Tensor, batches: Sequence[AttentionBatch], kv_cache: KVCacheTensors, rows: Tensor
    ) -> Tensor: ...

    def logits(self, hidden: Tensor) -> Tensor: ...

    def shapes_of_sums(self, num_tokens: int, num_rows: int) -> list[tuple[int, int]]: ...


def words(order: Order, *sizes: int) -> Tensor:
    """An order and its sizes, as shards are sent them."""
    return torch.tensor([order, *sizes] + [0] * (NUM_WORDS - 1 - len(sizes)), dtype=torch.int64)


def compute_hidden(
    group: ShardGroup,
    model: ShardModel,
    token_ids: Tensor,
    batches: Sequence[AttentionBatch],
    kv_cache: KVCacheTensors,
    rows: Tensor,
) -> Tensor | None:
    """This shard's part in a forward pass. At shard 0 it raises what any of them failed with."""
    before = group.num_sums
    hidden, error = attempt(lambda: model.forward(token_ids, batches, kv_cache, rows))
    if error is not None:
        for shape in model.shapes_of_sums(len(token_ids), len(rows))[group.num_sums - before :]:
            group.sum(torch.zeros(shape, dtype=model.dtype, device=token_ids.device))
    group.report(error)
    return hidden


def compute_logits(group: ShardGroup, model: ShardModel, hidden: Tensor, vocab_size: int) -> Tensor | None:
    """The logits of the whole vocabulary, at shard 0; it raises what any of them failed with."""
    parts = cut(vocab_size, group.count)
    shape = len(hidden), max(part.stop - part.start for part in parts)

    def compute() -> Tensor:
        padded = torch.empty(shape, dtype=torch.float32, device=hidden.device)
        own = model.logits(hidden)
        padded[:, : own.shape[1]] = own
        return padded

    padded, error = attempt(compute)
    if padded is None:
        padded = torch.zeros(shape, dtype=torch.float32, device=hidden.device)
    gathered = group.gather(padded)
    group.report(error)
    if not group.leads:
        return None
    return torch.cat(
        [logits[:, : part.stop - part.start] for logits, part in zip(gathered, parts, strict=True)], dim=1
    )


class LeadingModel:
    """Shard 0 of a model, which has the others do what it does: a :class:`~triolet.runtime.loading.Model`."""

    def __init__(self, model: ShardModel, group: ShardGroup, vocab_size: int) -> None:
        self._model = model
        self._group = group
        self._vocab_size = vocab_size
        self._order = Order.FORWARD

    @contextmanager
    def probing(self) -> Iterator[None]:
        """Passes in here are over a KV cache that is thrown away, at all shards."""
        self._order = Order.PROBE
        try:
            yield
        finally:
            self._order = Order.FORWARD

    def forward(
        self, token_ids: Tensor, batches: Sequence[AttentionBatch], kv_cache: KVCacheTensors, rows: Tensor
    ) -> Tensor:
        sizes, joined = join_batch(token_ids, batches, rows)
        self._group.order(words(self._order, *sizes.numbers()))
        self._group.broadcast(joined)
        hidden = compute_hidden(self._group, self._model, token_ids, batches, kv_cache, rows)
        assert hidden is not None, "what failed was raised"
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        if not len(hidden):
            return torch.empty(0, self._vocab_size, dtype=torch.float32, device=hidden.device)
        self._group.order(words(Order.LOGITS, *hidden.shape))
        self._group.broadcast(hidden.contiguous())
        logits = compute_logits(self._group, self._model, hidden, self._vocab_size)
        assert logits is not None, "this is shard 0"
        return logits
