"""``follow``: a shard that does what shard 0 does, for as long as that leads.

This module knows nothing of requests, sampling or scheduling.
"""

from __future__ import annotations

import torch

from triolet.args import EngineArgs
from triolet.errors import EngineDeadError
from triolet.models.decoder import Decoder
from triolet.models.source import ModelFiles
from triolet.runtime.batch_words import BatchSizes, split_batch
from triolet.runtime.device import choose_device
from triolet.runtime.kv_cache import KVCacheTensors, scratch_cache
from triolet.runtime.loading import LoadedModel, load_parts
from triolet.runtime.residence import return_freed_memory
from triolet.runtime.shard_group import ShardGroup, attempt
from triolet.runtime.shard_joining import join_shards
from triolet.runtime.shard_place import ShardPlace
from triolet.runtime.sharded_model import Order, compute_hidden, compute_logits, words

__all__ = ["follow", "follow_place"]


def follow_place(place: ShardPlace, files: ModelFiles, args: EngineArgs, *, num_sharing: int) -> None:
    """Join the others, load this shard and follow shard 0 to the end.

    Raises what any shard's loading fails with, JoinError where the others are not found, EngineDeadError once
    one is lost.
    """
    group = join_shards(place, choose_device(args), _say_nothing)
    try:
        follow(group, load_parts(files, args, _say_nothing, num_sharing=num_sharing, group=group))
    except EngineDeadError:
        raise
    except BaseException as error:
        group.leave_word(f"{type(error).__name__}: {error}")
        raise
    finally:
        group.close()


def _say_nothing(phase: str) -> None:
    """Shard 0 tells what is being done, for all."""


def follow(group: ShardGroup, loaded: LoadedModel[Decoder]) -> None:
    """Return when shard 0 says that it is enough. Raises EngineDeadError when it is gone."""
    shard = _FollowingShard(group, loaded)
    del loaded  # what it lends has to go when it is told to
    while shard.obey(group.order(words(Order.END))):
        pass


class _FollowingShard:
    def __init__(self, group: ShardGroup, loaded: LoadedModel[Decoder]) -> None:
        self._group = group
        self._sources = loaded.sources
        self._vocab_size = loaded.vocab_size
        self._device = loaded.device
        self._model: Decoder | None = loaded.model
        self._kv_cache: KVCacheTensors = loaded.kv_cache

    @torch.inference_mode()
    def obey(self, order: torch.Tensor) -> bool:
        """Do one thing; False when there is nothing more to do. What fails here is told shard 0."""
        kind, *sizes = order.tolist()
        match Order(kind):
            case Order.FORWARD:
                self._forward(BatchSizes(*sizes), self._kv_cache)
            case Order.PROBE:
                self._forward(BatchSizes(*sizes), scratch_cache(self._kv_cache))
            case Order.LOGITS:
                self._logits(sizes[0], sizes[1])
            case Order.RELEASE:
                self._model, self._kv_cache = None, ()
                return_freed_memory()
            case Order.RESTORE_WEIGHTS:
                self._group.report(attempt(self._restore_weights)[1])
            case Order.RESTORE_KV_CACHE:
                self._group.report(attempt(self._restore_kv_cache)[1])
            case Order.END:
                return False
        return True

    def _forward(self, sizes: BatchSizes, kv_cache: KVCacheTensors) -> None:
        assert self._model is not None, "shard 0 knows that there are no weights now"
        joined = torch.empty(sizes.num_words, dtype=torch.int32, device=self._device)
        token_ids, batches, rows = split_batch(sizes, self._group.broadcast(joined))
        compute_hidden(self._group, self._model, token_ids, batches, kv_cache, rows)

    def _logits(self, num_rows: int, width: int) -> None:
        assert self._model is not None, "shard 0 knows that there are no weights now"
        hidden = torch.empty(num_rows, width, dtype=self._model.dtype, device=self._device)
        compute_logits(self._group, self._model, self._group.broadcast(hidden), self._vocab_size)

    def _restore_weights(self) -> None:
        if self._model is None:
            self._model = self._sources.load_model()

    def _restore_kv_cache(self) -> None:
        if not self._kv_cache:
            self._kv_cache = self._sources.allocate_kv_cache()
