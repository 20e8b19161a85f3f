"""``load_parts``: from files and options to what a runner runs: weights, KV cache, kernels and their sizes.

A shard of a model loads the same way, and agrees with the others on the sizes. All of it belongs to the
thread that loads, whose number of torch threads it sets. This module knows nothing of steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from triolet.args import EngineArgs
from triolet.errors import UsageError
from triolet.models.checkpoint import Checkpoint, open_checkpoint
from triolet.models.decoder import Decoder
from triolet.models.loader import load_model
from triolet.models.sharding import Shard
from triolet.models.source import ModelFiles
from triolet.plan import LayerGroup
from triolet.runtime.cuda import CudaDevice
from triolet.runtime.device import (
    choose_cache_dtype,
    choose_device,
    choose_dtype,
    choose_num_threads,
)
from triolet.runtime.device_adjuster import history_bytes
from triolet.runtime.draft_loading import DraftFit
from triolet.runtime.draft_model import DraftModel
from triolet.runtime.graph_memory import graph_memory
from triolet.runtime.kv_cache import KVCacheConfig, KVCacheTensors, allocate_kv_cache
from triolet.runtime.kv_cache_size import choose_share_before_eviction, choose_sizes
from triolet.runtime.memory import available_memory
from triolet.runtime.residence import Sources
from triolet.runtime.shard_group import ShardGroup
from triolet.runtime.step_memory import step_memory
from triolet_kernels.ops import AttentionBatch, Ops, select_ops

__all__ = ["LoadedModel", "Model", "load_parts"]

logger = logging.getLogger("triolet.runtime")

M = TypeVar("M")
ModelT = TypeVar("ModelT")


class Model(Protocol):
    """What the runner asks of a model."""

    def forward(
        self, token_ids: Tensor, batches: Sequence[AttentionBatch], kv_cache: KVCacheTensors, rows: Tensor
    ) -> Tensor:
        """``token_ids (T,)`` and ``rows (R,)`` int64 → hidden states ``(R, hidden)`` of those tokens.

        ``batches`` has an entry for each group of layers, ``kv_cache`` one for each layer.
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """``hidden (R, hidden)`` → logits ``(R, vocab)`` float32, the caller's to change."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadedModel(Generic[ModelT]):
    """What is needed to run a model, and to have it again after it was let go.

    ``layer_groups`` are those of the KV cache; ``max_model_len`` is the longest sequence in tokens.
    """

    model: ModelT
    kv_cache: KVCacheTensors
    layer_groups: tuple[LayerGroup, ...]
    vocab_size: int
    max_model_len: int
    device: torch.device
    ops: Ops
    sources: Sources[ModelT, KVCacheTensors]
    draft_model: DraftModel | None


def load_parts(
    files: ModelFiles,
    args: EngineArgs,
    on_phase: Callable[[str], None],
    *,
    num_sharing: int = 1,
    group: ShardGroup | None = None,
) -> LoadedModel[Decoder]:
    """Load a model, or this process's shard of it where it is one of a ``group``.

    ``on_phase`` is told what is being done, again with every tensor; what it raises ends the loading.
    ``num_sharing`` processes share the memory of the device. Torch's number of threads is left as is best
    for running the model. See :meth:`~triolet.runtime.runner.ModelRunner.load` for what is raised; a shard
    raises what any of them does.
    """
    torch.set_num_threads(choose_num_threads(args))
    together = _alone if group is None else group.together
    on_phase("loading weights")
    loading = together(lambda: _Loading(files, args, on_phase, num_sharing, group))
    sizes = loading.sizes
    if group is not None:
        smallest = group.smallest([sizes[0], *sizes[1]])
        sizes = smallest[0], smallest[1:]
    on_phase("allocating KV cache")
    return together(lambda: loading.finish(*sizes))


def _alone(function: Callable[[], M]) -> M:
    return function()


class _Loading:
    """A model whose weights are there, before its KV cache is. ``sizes``: context, and blocks by group."""

    def __init__(
        self,
        files: ModelFiles,
        args: EngineArgs,
        on_phase: Callable[[str], None],
        num_sharing: int,
        group: ShardGroup | None,
    ) -> None:
        self._args = args
        self._device = choose_device(args)
        self._dtype = choose_dtype(args, self._device)
        self._num_sharing = num_sharing
        self._step_bytes = 0
        with open_checkpoint(files) as checkpoint:
            self._read(files, checkpoint, on_phase, group)

    def _read(
        self,
        files: ModelFiles,
        checkpoint: Checkpoint,
        on_phase: Callable[[str], None],
        group: ShardGroup | None,
    ) -> None:
        args, device = self._args, self._device
        config, shard = checkpoint.config, None
        if group is not None:
            shard = Shard.of(config, group.index, group.count, group.sum)
            config = shard.config
        self._config = config
        self._cache_config = KVCacheConfig.of(
            config,
            block_size=args.block_size,
            max_num_batched_tokens=args.max_num_batched_tokens,
            dtype=choose_cache_dtype(args, device),
            device=device,
        )

        # A context for which there is no memory even now is refused before anything of its size is made.
        # One process guesses for all shards.
        fit = (
            DraftFit.of(args, config, self._cache_config, on_phase) if group is None or group.leads else None
        )
        if fit is not None:
            self._cache_config = fit.share_cache(self._cache_config)
        num_positions, _ = self._choose_sizes()
        if fit is not None:
            fit.check_context(num_positions)
        self._fit, self._ops = fit, _select_ops(args, device)
        read = partial(
            torch.inference_mode()(load_model),
            ops=self._ops,
            dtype=self._dtype,
            device=device,
            num_positions=num_positions,
            shard=shard,
        )
        self._model: Decoder = read(checkpoint, on_tensor=partial(on_phase, "loading weights"))
        self._draft = None if fit is None else fit.read(self._ops, num_positions, on_phase)
        if device.type != "cpu":
            on_phase("measuring a step")
            self._step_bytes = self._measure(num_positions, is_overlapped=fit is None and group is None)
        if device.type == "cpu" and not self._ops.uses_torch_threads:
            torch.set_num_threads(1)
        self._num_positions = num_positions
        self._read_model = partial(_read_again, args, partial(_read_files, files, read))
        max_model_len, num_blocks = self._choose_sizes()
        self.sizes = min(max_model_len, num_positions), num_blocks

    def _measure(self, max_model_len: int, *, is_overlapped: bool) -> int:
        """Bytes of a GPU that are taken while serving, beside weights and KV cache."""
        device, max_num_seqs = CudaDevice(self._device), self._args.max_num_seqs
        num_bytes = step_memory(device, self._model, self._cache_config, max_num_seqs=max_num_seqs)
        if is_overlapped:
            num_bytes += history_bytes(max_num_seqs + 1, self._config.vocab_size)
            num_bytes += graph_memory(
                device,
                self._model,
                self._cache_config,
                max_num_seqs=max_num_seqs,
                max_model_len=max_model_len,
            )
        return num_bytes

    def _choose_sizes(self) -> tuple[int, tuple[int, ...]]:
        available = available_memory(self._device, self._args.gpu_memory_utilization) // self._num_sharing
        available = max(0, available - self._step_bytes)
        return choose_sizes(self._args, self._config, self._cache_config, available)

    def finish(self, max_model_len: int, num_blocks: tuple[int, ...]) -> LoadedModel[Decoder]:
        """With a KV cache of so many blocks."""
        cache_config, device = self._cache_config, self._device
        logger.info(
            "model on %s in %s with %s kernels; context %d; KV cache %d MiB, %s blocks of %d tokens",
            device, str(self._dtype).removeprefix("torch."), self._ops.name, max_model_len,
            cache_config.total_bytes(num_blocks) >> 20, " + ".join(map(str, num_blocks)),
            self._args.block_size,
        )  # fmt: skip
        # On a GPU, rows that only fill up a batch have a block to write to.
        num_spare = 0 if device.type == "cpu" else 1
        share = choose_share_before_eviction(
            self._args, cache_config, max_model_len=max_model_len, num_blocks=num_blocks
        )
        allocate = partial(allocate_kv_cache, cache_config, [count + num_spare for count in num_blocks])
        return LoadedModel(
            model=self._model,
            kv_cache=allocate(),
            layer_groups=cache_config.layer_groups(num_blocks, share),
            vocab_size=self._config.vocab_size,
            max_model_len=max_model_len,
            device=device,
            ops=self._ops,
            sources=Sources(self._read_model, allocate),
            draft_model=self._join_draft(num_blocks),
        )

    def _join_draft(self, num_blocks: Sequence[int]) -> DraftModel | None:
        fit, draft = self._fit, self._draft
        if fit is None or draft is None:
            return None
        read = partial(fit.read, self._ops, self._num_positions)
        return fit.join(draft, self._ops, num_blocks, partial(_read_again, self._args, read))


def _select_ops(args: EngineArgs, device: torch.device) -> Ops:
    is_reference, num_threads = args.kernels == "reference", torch.get_num_threads()
    try:
        return select_ops(device, is_reference=is_reference, num_threads=num_threads)
    except ValueError as error:
        raise UsageError(str(error), param="kernels") from error


def _read_files(files: ModelFiles, read: Callable[[Checkpoint], M]) -> M:
    with open_checkpoint(files) as checkpoint:
        return read(checkpoint)


def _read_again(args: EngineArgs, read: Callable[[], M]) -> M:
    """Weights once more, with as many threads as the first time."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(choose_num_threads(args))
    try:
        return read()
    finally:
        torch.set_num_threads(num_threads)
