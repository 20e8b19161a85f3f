"""A model whose next token depends, exactly, on every token before it that it finds in the KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from tests.triolet.runtime.fake_device import FakeDevice
from torch import Tensor

from triolet.args import EngineArgs
from triolet.core.engine_core import EngineCore, build_core
from triolet.plan import LayerGroup
from triolet.request import Request, TokenLogprobs, TokenOutput
from triolet.runtime.constraints import Constraints
from triolet.runtime.kv_cache import KVCacheTensors
from triolet.runtime.loading import LoadedModel, Model
from triolet.runtime.overlapped_runner import OverlappedRunner
from triolet.runtime.residence import Sources
from triolet.runtime.runner import ModelRunner
from triolet_kernels.ops import AttentionBatch
from triolet_kernels.reference import ReferenceOps

__all__ = ["BAD_TOKEN", "TOY_ARGS", "Near", "ToyModel", "alone", "overlapped_core", "toy_parts"]

VOCAB_SIZE = 29
BAD_TOKEN = 28
"""A sequence with this token in it has logits that are not numbers."""
MODULUS = 9973
BLOCK_SIZE = 4
TOY_ARGS = EngineArgs(device="cpu", kernels="reference", max_num_seqs=4, max_num_batched_tokens=16)


@dataclass(frozen=True, eq=False)
class Near:
    """Equal to another one if the log-probabilities are, up to rounding."""

    entry: TokenLogprobs

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Near)
        mine, theirs = self.entry, other.entry
        return (mine.token_ids, mine.rank) == (theirs.token_ids, theirs.rank) and np.allclose(
            mine.logprobs, theirs.logprobs, rtol=0, atol=1e-5
        )


class ToyModel:
    """Its layers, one for each group, keep the tokens themselves in the place of keys."""

    def __init__(self, windows: Sequence[int | None] = (None,)) -> None:
        self._windows = windows

    def forward(
        self, token_ids: Tensor, batches: Sequence[AttentionBatch], kv_cache: KVCacheTensors, rows: Tensor
    ) -> Tensor:
        hashes = torch.zeros(len(token_ids))
        for window, batch, (keys, _) in zip(self._windows, batches, kv_cache, strict=True):
            keys.view(-1)[batch.cache_slots] = token_ids.float()
            starts = batch.query_starts.tolist()
            for sequence, (start, end) in enumerate(pairwise(starts)):
                for token in range(start, end):
                    position = int(batch.positions[token])
                    hashes[token] += self._hash(keys, batch.block_tables[sequence], position, window)
        return hashes[rows][:, None]

    def _hash(self, keys: Tensor, table: Tensor, position: int, window: int | None) -> float:
        """Of the tokens that are seen from ``position``."""
        first = 0 if window is None else max(0, position - window + 1)
        value = 1.0
        for place in range(first, position + 1):
            token = float(keys[int(table[place // BLOCK_SIZE]), 0, place % BLOCK_SIZE, 0])
            if token == BAD_TOKEN or token != token:
                return float("nan")
            value = (value * 31 + token + 1) % MODULUS
        return value

    def logits(self, hidden: Tensor) -> Tensor:
        tokens = torch.arange(VOCAB_SIZE)
        return (hidden * 7 + tokens * 41 + (hidden * tokens) % 101) % 97 / 16


def toy_parts(num_blocks: int = 24, windows: Sequence[int | None] = (None,)) -> LoadedModel[Model]:
    """The model, with a spare block in its cache, in which nothing is a number yet."""

    def allocate() -> KVCacheTensors:
        shape = (num_blocks + 1, 1, BLOCK_SIZE, 1)
        return tuple((torch.full(shape, torch.nan), torch.full(shape, torch.nan)) for _ in windows)

    return LoadedModel(
        model=ToyModel(windows),
        kv_cache=allocate(),
        layer_groups=tuple(LayerGroup(num_blocks=num_blocks, window=window) for window in windows),
        vocab_size=VOCAB_SIZE,
        max_model_len=60,
        device=torch.device("cpu"),
        ops=ReferenceOps(),
        sources=Sources(lambda: ToyModel(windows), allocate),
        draft_model=None,
    )


def overlapped_core(
    device: FakeDevice,
    args: EngineArgs = TOY_ARGS,
    parts: LoadedModel[Model] | None = None,
    constraints: Constraints | None = None,
) -> EngineCore:
    return build_core(OverlappedRunner(parts or toy_parts(), args, device, constraints), args)


def alone(request: Request, windows: Sequence[int | None] = (None,), **changes: Any) -> list[TokenOutput]:
    """What comes out for a request that has a plain runner to itself, one step at a time."""
    args = replace(TOY_ARGS, **changes)
    core = build_core(ModelRunner._of(toy_parts(windows=windows), args, None), args)
    core.add(request)
    outputs = []
    while core.has_unfinished:
        outputs += core.step()
    return outputs
