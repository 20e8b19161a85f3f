"""Gemma 3 (text): the decoder with a norm after, as well as before, attention and feed-forward network.

Its other traits (windows with a rotary embedding of their own, head norms, scaled embeddings, GELU) follow
from the config. This module must not know file formats.

Source: Gemma Team 2025, "Gemma 3 Technical Report", and the layer order of Gemma 2 (2024).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from triolet.models.decoder import Decoder, DecoderLayer

if TYPE_CHECKING:
    from triolet.models.config import ModelConfig
    from triolet.models.weights import Weights
    from triolet_kernels.ops import AttentionBatch

__all__ = ["GemmaDecoder", "GemmaDecoderLayer"]


class GemmaDecoderLayer(DecoderLayer):
    """A layer that normalises what it adds to the residual."""

    feed_forward_norm_name = "pre_feedforward_layernorm"

    def __init__(self, config: ModelConfig, layer: int, weights: Weights, cos_sin: Tensor) -> None:
        super().__init__(config, layer, weights, cos_sin)
        name, eps = f"model.layers.{layer}", config.rms_norm_eps
        self._attention_output_norm = weights.rms_norm(f"{name}.post_attention_layernorm", eps)
        self._feed_forward_output_norm = weights.rms_norm(f"{name}.post_feedforward_layernorm", eps)

    def attention(self, x: Tensor, batch: AttentionBatch, cache: tuple[Tensor, Tensor]) -> Tensor:
        return self._attention_output_norm(super().attention(x, batch, cache))

    def feed_forward(self, x: Tensor) -> Tensor:
        return self._feed_forward_output_norm(super().feed_forward(x))

    @classmethod
    def shapes(cls, config: ModelConfig) -> dict[str, tuple[int, ...]]:
        norm = (config.hidden_size,)
        return super().shapes(config) | {
            "post_attention_layernorm.weight": norm,
            "post_feedforward_layernorm.weight": norm,
        }


class GemmaDecoder(Decoder):
    """Gemma 3, text only."""

    layer_type = GemmaDecoderLayer
