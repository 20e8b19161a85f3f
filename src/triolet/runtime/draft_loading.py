"""Fitting a draft model to the model it guesses for: what must agree, what its KV cache takes, loading it.

It knows configs and options; nothing of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from triolet.args import EngineArgs
from triolet.errors import UsageError
from triolet.models.checkpoint import open_checkpoint
from triolet.models.config import ModelConfig
from triolet.models.decoder import Decoder
from triolet.models.loader import load_model
from triolet.models.source import ModelFiles, resolve_model
from triolet.runtime.draft_model import DraftModel
from triolet.runtime.kv_cache import KVCacheConfig, allocate_kv_cache
from triolet.runtime.residence import Sources
from triolet_kernels.ops import Ops

__all__ = ["DraftFit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftFit:
    """A draft model found to go with a model, before either is loaded.

    ``group``: the model's group of layers whose blocks the draft model uses.
    """

    name: str
    files: ModelFiles
    cache_config: KVCacheConfig
    config: ModelConfig
    group: int

    @classmethod
    def of(
        cls,
        args: EngineArgs,
        model: ModelConfig,
        cache_config: KVCacheConfig,
        on_phase: Callable[[str], None],
    ) -> DraftFit | None:
        """That of ``args.draft_model``, fetched first where it is not on this machine; None if there is none.

        Raises :class:`UsageError` where it does not go with the model, and what
        :func:`~triolet.models.source.resolve_model` raises.
        """
        if args.draft_model is None:
            return None
        on_phase("finding the draft model")
        files = resolve_model(
            args.draft_model,
            cache_dir=args.cache_dir,
            progress=lambda progress: on_phase("finding the draft model"),
        )
        with open_checkpoint(files) as checkpoint:
            config = checkpoint.config
        _check_vocabulary(args, model, config)
        draft_cache_config = KVCacheConfig.of(
            config,
            block_size=cache_config.block_size,
            max_num_batched_tokens=cache_config.max_num_batched_tokens,
            dtype=cache_config.dtype,
            device=cache_config.device,
        )
        return cls(
            name=args.draft_model,
            files=files,
            cache_config=draft_cache_config,
            config=config,
            group=_shared_group(args, model, config),
        )

    def share_cache(self, cache_config: KVCacheConfig) -> KVCacheConfig:
        """The model's cache with what the draft model's layers take of each block counted in."""
        draft_bytes = self.cache_config.bytes_per_layer_block * len(self.cache_config.windows)
        groups = range(len(cache_config.group_windows))
        return replace(
            cache_config,
            draft_bytes_per_block=tuple(draft_bytes if group == self.group else 0 for group in groups),
        )

    def check_context(self, max_model_len: int) -> None:
        """UsageError where the draft model was not made for contexts of this length."""
        limit = self.config.max_position_embeddings
        if max_model_len > limit:
            raise UsageError(
                f"draft_model (--draft-model) {self.name} was made for contexts of {limit} tokens, but "
                f"max_model_len (--max-model-len) is {max_model_len}; set --max-model-len {limit} or take "
                "another draft model",
                param="draft_model",
            )

    @torch.inference_mode()
    def read(
        self, ops: Ops, num_positions: int, on_phase: Callable[[str], None] = lambda phase: None
    ) -> Decoder:
        """The weights, for sequences of up to ``num_positions``; ``on_phase`` is told with every tensor."""
        with open_checkpoint(self.files) as checkpoint:
            return load_model(
                checkpoint,
                ops,
                dtype=self.cache_config.dtype,
                device=self.cache_config.device,
                num_positions=num_positions,
                on_tensor=partial(on_phase, "loading the draft model"),
            )

    def join(
        self, model: Decoder, ops: Ops, num_blocks: Sequence[int], read_again: Callable[[], Decoder]
    ) -> DraftModel:
        """The draft model with a cache for ``num_blocks`` of each of the model's groups."""
        num_groups = len(self.config.group_windows)
        allocate = partial(allocate_kv_cache, self.cache_config, (num_blocks[self.group],) * num_groups)
        return DraftModel(
            model,
            allocate(),
            ops,
            group=self.group,
            num_groups=num_groups,
            sources=Sources(read_again, allocate),
        )


def _check_vocabulary(args: EngineArgs, model: ModelConfig, draft: ModelConfig) -> None:
    if draft.vocab_size != model.vocab_size:
        raise UsageError(
            f"draft_model (--draft-model) {args.draft_model} has a vocabulary of {draft.vocab_size} tokens, "
            f"and the model {args.model} one of {model.vocab_size}; a draft model needs the model's own "
            "vocabulary: take a smaller model of the same family",
            param="draft_model",
        )


def _shared_group(args: EngineArgs, model: ModelConfig, draft: ModelConfig) -> int:
    """The group whose blocks are kept for at least as long as any layer of the draft model looks back."""
    longest = max(range(len(model.group_windows)), key=lambda group: _length(model.group_windows[group]))
    if max(map(_length, draft.windows)) > _length(model.group_windows[longest]):
        raise UsageError(
            f"draft_model (--draft-model) {args.draft_model} looks further back than the "
            f"{model.group_windows[longest]} tokens that the model {args.model} keeps; take another one",
            param="draft_model",
        )
    return longest


def _length(window: int | None) -> float:
    return float("inf") if window is None else window
