"""What a step of a model has to read and to compute, and so how fast it can be at most on a machine.

Weights count as they are in the file, if they are quantised there, else in the number format of the run; of
keys and values, those of the tokens that a layer sees. Knows nothing of how a step is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from bench.kernels import Ceilings
from triolet.models.checkpoint import open_checkpoint
from triolet.models.source import local_files
from triolet_kernels.quant import QuantTensor

__all__ = ["StepWork", "most_tokens_per_s", "step_work"]

_EMBEDDING = "model.embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class StepWork:
    """``num_bytes`` and ``num_weights`` of the matrices that a token is multiplied with; ``windows`` of the
    layers, None without one; bytes of keys and values that a layer keeps of a token."""

    num_bytes: int
    num_weights: int
    windows: tuple[int | None, ...]
    key_value_bytes: int

    def bytes_read(self, batch: int, context: float) -> float:
        """By a step of ``batch`` sequences of ``context`` tokens each."""
        seen = sum(context if window is None else min(context, window) for window in self.windows)
        return self.num_bytes + batch * seen * self.key_value_bytes


def step_work(path: Path, dtype: torch.dtype) -> StepWork:
    """Of the model at ``path``, a GGUF file or a directory, with one feed-forward network in each layer."""
    num_bytes = num_weights = 0
    with open_checkpoint(local_files(path)) as checkpoint:
        config = checkpoint.config
        for name, shape in checkpoint.tensor_shapes.items():
            if len(shape) != 2 or (name == _EMBEDDING and not config.is_embedding_tied):
                continue
            tensor = checkpoint.tensor(name)
            size = shape[0] * shape[1]
            num_bytes += tensor.data.nbytes if isinstance(tensor, QuantTensor) else size * dtype.itemsize
            num_weights += size
    key_value_bytes = 2 * config.num_kv_heads * config.head_dim * dtype.itemsize
    return StepWork(num_bytes, num_weights, config.windows, key_value_bytes)


def most_tokens_per_s(work: StepWork, ceilings: Ceilings, batch: int, context: float) -> float:
    """Tokens a second of a batch: what memory allows, or what the products of the weights do if less."""
    seconds = max(
        work.bytes_read(batch, context) / ceilings.bytes_read,
        2 * batch * work.num_weights / ceilings.operations,
    )
    return batch / seconds
