"""``LeadingRunner``: the runner of shard 0, which has the other shards do what it does with its own.

This module knows neither processes nor how the shards found each other.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar, cast

from triolet.args import EngineArgs
from triolet.errors import EngineDeadError
from triolet.models.checkpoint import open_checkpoint
from triolet.models.decoder import Decoder
from triolet.models.sharding import check_shards
from triolet.models.source import ModelFiles
from triolet.runtime.constraints import Constraints
from triolet.runtime.device import choose_device
from triolet.runtime.loading import LoadedModel, load_parts
from triolet.runtime.residence import Sources
from triolet.runtime.runner import ModelRunner
from triolet.runtime.shard_group import ShardGroup, attempt
from triolet.runtime.shard_joining import join_shards
from triolet.runtime.shard_place import ShardPlace
from triolet.runtime.sharded_model import LeadingModel, Order, words

__all__ = ["LeadingRunner"]

T = TypeVar("T")


class LeadingRunner(ModelRunner):
    """See :class:`~triolet.runtime.runner.ModelRunner`. Raises EngineDeadError once a shard is lost."""

    _group: ShardGroup

    @classmethod
    def lead_at(
        cls,
        place: ShardPlace,
        files: ModelFiles,
        args: EngineArgs,
        on_phase: Callable[[str], None],
        constraints: Constraints | None = None,
        num_sharing: int = 1,
    ) -> Self:
        """Have the other shards come, and lead them. What does not go with the model is said before."""
        with open_checkpoint(files) as checkpoint:
            check_shards(checkpoint.config, place.count)
        group = join_shards(place, choose_device(args), on_phase)
        return cls.lead(group, files, args, on_phase, constraints, num_sharing)

    @classmethod
    def lead(
        cls,
        group: ShardGroup,
        files: ModelFiles,
        args: EngineArgs,
        on_phase: Callable[[str], None],
        constraints: Constraints | None = None,
        num_sharing: int = 1,
    ) -> Self:
        """Load, at the same time as the other shards of the ``group``; see ``load`` of the base class."""

        def load() -> LoadedModel[LeadingModel]:
            loaded = load_parts(files, args, on_phase, num_sharing=num_sharing, group=group)
            return _leading(loaded, group)

        runner = cls._start(load, args, on_phase, constraints)
        runner._group = group
        return runner

    def probe(self) -> None:
        assert isinstance(self._model, LeadingModel)
        with self._model.probing():
            super().probe()

    def release(self) -> None:
        self._group.order(words(Order.RELEASE))
        super().release()

    def close(self) -> None:
        with suppress(EngineDeadError):  # then there is nobody to tell
            self._group.order(words(Order.END))
        self._group.close()
        super().close()


def _leading(loaded: LoadedModel[Decoder], group: ShardGroup) -> LoadedModel[LeadingModel]:
    """The same, with a model and with sources that lead."""
    lead = partial(LeadingModel, group=group, vocab_size=loaded.vocab_size)
    sources = loaded.sources

    def load_model() -> LeadingModel:
        return lead(_everywhere(group, Order.RESTORE_WEIGHTS, sources.load_model))

    allocate = partial(_everywhere, group, Order.RESTORE_KV_CACHE, sources.allocate_kv_cache)
    changes: dict[str, Any] = {"model": lead(loaded.model), "sources": Sources(load_model, allocate)}
    leading: Any = replace(loaded, **changes)
    return cast("LoadedModel[LeadingModel]", leading)


def _everywhere(group: ShardGroup, order: Order, function: Callable[[], T]) -> T:
    group.order(words(order))
    result, error = attempt(function)
    group.report(error)
    return result  # type: ignore[return-value]
