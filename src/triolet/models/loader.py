"""``load_model``: an open checkpoint becomes a model that can be run.

This module knows neither where the files are nor how their formats work, and nothing of scheduling.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from triolet.models.registry import model_type
from triolet.models.weights import Weights, check_shapes

if TYPE_CHECKING:
    from triolet.models.checkpoint import Checkpoint
    from triolet.models.decoder import Decoder
    from triolet.models.sharding import Shard
    from triolet_kernels.ops import Ops

__all__ = ["load_model"]


def load_model(
    checkpoint: Checkpoint,
    ops: Ops,
    *,
    dtype: torch.dtype,
    device: torch.device,
    num_positions: int | None = None,
    on_tensor: Callable[[], None] = lambda: None,
    shard: Shard | None = None,
) -> Decoder:
    """Check a checkpoint against its config and read it, tensor by tensor, into a model.

    ``dtype`` is that of activations and KV cache. ``num_positions`` is the longest sequence the model will
    be given; the config's limit if not given. ``on_tensor`` is called before each tensor is read; it may
    raise, to end the loading. The checkpoint may be closed afterwards. With ``shard``, the model is that
    part of it, whose logits are those of a part of the vocabulary.

    Raises :class:`UnknownArchitectureError`, and :class:`WeightsError` naming every tensor that is missing,
    unexpected or wrongly shaped, before anything is read.
    """
    config = checkpoint.config
    decoder_type = model_type(config.architecture)
    expected = decoder_type.shapes(config)
    check_shapes(expected, checkpoint.tensor_shapes)
    weights = Weights(checkpoint, expected, ops, dtype=dtype, device=device, on_tensor=on_tensor, shard=shard)
    return decoder_type(
        config if shard is None else shard.config, weights, num_positions or config.max_position_embeddings
    )
