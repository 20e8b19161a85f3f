"""The decoder that Llama, Mistral, Mixtral and Qwen models are, and that other families vary.

Experts, biases, head norms, windows, rotary scaling and activation follow from the config. This module knows
nothing of files, of scheduling, or of how an operation is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from triolet.models.experts import ExpertFeedForward
from triolet.models.rope import cos_sin_table

if TYPE_CHECKING:
    from triolet.models.config import ModelConfig, RopeConfig
    from triolet.models.weights import Weights
    from triolet_kernels.ops import AttentionBatch, DrawnTokens, DrawSettings, GatedActivation

__all__ = ["Attention", "Decoder", "DecoderLayer", "FeedForward", "KVCacheTensors"]

KVCacheTensors = Sequence[tuple[Tensor, Tensor]]
"""Keys and values of each layer, each ``(num_blocks of the layer's group, G, B, D)``."""


class Attention:
    """Grouped-query self-attention (Ainslie 2023) over the paged cache, with rotary positions."""

    def __init__(self, config: ModelConfig, layer: int, name: str, weights: Weights, cos_sin: Tensor) -> None:
        self._ops = weights.ops
        self._qkv = weights.linear(f"{name}.q_proj", f"{name}.k_proj", f"{name}.v_proj")
        self._output = weights.output_linear(f"{name}.o_proj")
        self._q_norm = weights.norm_weight(f"{name}.q_norm") if config.has_qk_norm else None
        self._k_norm = weights.norm_weight(f"{name}.k_norm") if config.has_qk_norm else None
        wide_norms = ("q_norm", "k_norm") if config.has_wide_qk_norm else ()
        self._wide_norms = [weights.norm_weight(f"{name}.{norm}") for norm in wide_norms]
        self._eps = config.rms_norm_eps
        self._num_heads = config.num_heads
        self._scale = config.attention_scale
        self._window = config.windows[layer]
        self._cos_sin = cos_sin

    def __call__(self, x: Tensor, batch: AttentionBatch, cache: tuple[Tensor, Tensor]) -> Tensor:
        key_cache, value_cache = cache
        qkv, first = self._qkv(x), 0
        for norm in self._wide_norms:
            self._ops.norm_columns(qkv, first, norm, self._eps)
            first += len(norm)
        query = self._ops.rotary_and_cache(
            qkv,
            batch,
            self._cos_sin,
            key_cache,
            value_cache,
            num_heads=self._num_heads,
            q_norm=self._q_norm,
            k_norm=self._k_norm,
            eps=self._eps,
        )
        x = self._ops.paged_attention(
            query, key_cache, value_cache, batch, scale=self._scale, window=self._window
        )
        return self._output(x)


class FeedForward:
    """Gated feed-forward network (Shazeer 2020): ``down(activation(gate(x)) * up(x))``."""

    def __init__(self, config: ModelConfig, name: str, weights: Weights) -> None:
        self._gate_up = weights.linear(f"{name}.gate_proj", f"{name}.up_proj")
        self._activation: GatedActivation = "silu" if config.activation == "silu" else "gelu"
        self._down = weights.output_linear(f"{name}.down_proj")

    def __call__(self, x: Tensor) -> Tensor:
        return self._down(self._gate_up.gated(x, self._activation))

    @staticmethod
    def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
        """Its tensors, by the end of their name."""
        hidden, width = config.hidden_size, config.intermediate_size
        return {
            "mlp.gate_proj.weight": (width, hidden),
            "mlp.up_proj.weight": (width, hidden),
            "mlp.down_proj.weight": (hidden, width),
        }


class DecoderLayer:
    """Attention, then feed-forward, each on the norm of the residual it is added to."""

    feed_forward_norm_name: ClassVar[str] = "post_attention_layernorm"

    def __init__(self, config: ModelConfig, layer: int, weights: Weights, cos_sin: Tensor) -> None:
        name = f"model.layers.{layer}"
        self.attention_norm = weights.rms_norm(f"{name}.input_layernorm", config.rms_norm_eps)
        self._attention = Attention(config, layer, f"{name}.self_attn", weights, cos_sin)
        self.feed_forward_norm = weights.rms_norm(
            f"{name}.{self.feed_forward_norm_name}", config.rms_norm_eps
        )
        self._feed_forward = self._network(config)(config, f"{name}.mlp", weights)

    def attention(self, x: Tensor, batch: AttentionBatch, cache: tuple[Tensor, Tensor]) -> Tensor:
        """What attention adds to the residual."""
        return self._attention(x, batch, cache)

    def feed_forward(self, x: Tensor) -> Tensor:
        """What the feed-forward network adds to the residual."""
        return self._feed_forward(x)

    @staticmethod
    def _network(config: ModelConfig) -> type[FeedForward | ExpertFeedForward]:
        return FeedForward if config.experts is None else ExpertFeedForward

    @classmethod
    def shapes(cls, config: ModelConfig) -> dict[str, tuple[int, ...]]:
        """The tensors of one layer, by the end of their name."""
        hidden = config.hidden_size
        query = config.num_heads * config.head_dim
        key_value = config.num_kv_heads * config.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (hidden,),
            f"{cls.feed_forward_norm_name}.weight": (hidden,),
            "self_attn.q_proj.weight": (query, hidden),
            "self_attn.k_proj.weight": (key_value, hidden),
            "self_attn.v_proj.weight": (key_value, hidden),
            "self_attn.o_proj.weight": (hidden, query),
        }
        shapes |= cls._network(config).shapes(config)
        if config.has_attention_bias:
            shapes["self_attn.q_proj.bias"] = (query,)
            shapes["self_attn.k_proj.bias"] = (key_value,)
            shapes["self_attn.v_proj.bias"] = (key_value,)
        if config.has_qk_norm:
            shapes["self_attn.q_norm.weight"] = (config.head_dim,)
            shapes["self_attn.k_norm.weight"] = (config.head_dim,)
        if config.has_wide_qk_norm:
            shapes["self_attn.q_norm.weight"] = (query,)
            shapes["self_attn.k_norm.weight"] = (key_value,)
        return shapes


class Decoder:
    """A decoder-only language model. Made by :func:`triolet.models.loader.load_model`."""

    layer_type: ClassVar[type[DecoderLayer]] = DecoderLayer

    def __init__(self, config: ModelConfig, weights: Weights, num_positions: int) -> None:
        self.config = config
        self.dtype = weights.dtype
        self._embedding = weights.embedding("model.embed_tokens", config.embedding_multiplier)
        tables: dict[RopeConfig, Tensor] = {
            rope: cos_sin_table(rope, num_positions, weights.device)
            for rope in {config.rope_of(layer) for layer in range(config.num_layers)}
        }
        self._layers = [
            self.layer_type(config, layer, weights, tables[config.rope_of(layer)])
            for layer in range(config.num_layers)
        ]
        self._groups = [config.group_windows.index(window) for window in config.windows]
        final_norm = weights.rms_norm("model.norm", config.rms_norm_eps)
        self._next_norms = [*(layer.attention_norm for layer in self._layers[1:]), final_norm]
        self._output = weights.vocabulary("model.embed_tokens" if config.is_embedding_tied else "lm_head")
        self._take_rows = weights.ops.take_rows
        self._to_float32 = weights.ops.to_float32
        self._draw_tokens = weights.ops.draw
        self._run_step = weights.step_runner()

    def forward(
        self, token_ids: Tensor, batches: Sequence[AttentionBatch], kv_cache: KVCacheTensors, rows: Tensor
    ) -> Tensor:
        """What :meth:`logits` takes ``(R, hidden)``, for the tokens at ``rows (R,)`` of ``token_ids (T,)``.

        Both are int64. Keys and values of all tokens are written to ``kv_cache``, as ``batches`` say: one
        for each group of layers, see :attr:`ModelConfig.group_windows`. The result is valid until the next
        call.
        """
        residual = self._embedding(token_ids).float()
        some_rows = rows if len(rows) else rows.new_zeros(1)
        return self._run_step(self._transform, residual, batches, kv_cache, some_rows)[: len(rows)]

    def draw(
        self,
        token_ids: Tensor,
        batches: Sequence[AttentionBatch],
        kv_cache: KVCacheTensors,
        rows: Tensor,
        settings: DrawSettings,
    ) -> DrawnTokens:
        """:meth:`forward`, then :meth:`logits`, then a token drawn after each of ``rows``, at least one.

        The result is valid until the next call.
        """
        residual = self._embedding(token_ids).float()
        return self._run_step.draw(self._transform, self._draw, residual, batches, kv_cache, rows, settings)

    def _draw(self, hidden: Tensor, settings: DrawSettings) -> DrawnTokens:
        return self._draw_tokens(self.logits(hidden), settings)

    def _transform(
        self, residual: Tensor, batches: Sequence[AttentionBatch], kv_cache: KVCacheTensors, rows: Tensor
    ) -> Tensor:
        """What all layers make of embedded tokens ``residual (T, hidden)`` float32; calls operations only."""
        x = self._layers[0].attention_norm(residual)
        last = self._layers[-1]
        for layer, group, next_norm, cache in zip(
            self._layers, self._groups, self._next_norms, kv_cache, strict=True
        ):
            x = layer.attention(x, batches[group], cache)
            if layer is last:
                # No other row is looked at again, so the rest is computed for these alone.
                x, residual = self._take_rows(x, rows), self._take_rows(residual, rows)
            x = layer.feed_forward_norm.add(x, residual)
            x = next_norm.add(layer.feed_forward(x), residual)
        return x

    def shapes_of_sums(self, num_tokens: int, num_rows: int) -> list[tuple[int, int]]:
        """What shards add up in :meth:`forward`, in order: T tokens, R rows."""
        hidden = self.config.hidden_size
        return [(num_tokens, hidden)] * (2 * len(self._layers) - 1) + [(max(num_rows, 1), hidden)]

    def logits(self, hidden: Tensor) -> Tensor:
        """``hidden (R, hidden)`` → logits ``(R, vocab)`` float32, the caller's to change.

        Apart from :meth:`forward`, so that those of many tokens can be had a few at a time.
        """
        return self._to_float32(self._output(hidden))

    @classmethod
    def shapes(cls, config: ModelConfig) -> dict[str, tuple[int, ...]]:
        """Every tensor a checkpoint must have, by its full name."""
        table = (config.vocab_size, config.hidden_size)
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": table,
            "model.norm.weight": (config.hidden_size,),
        }
        if not config.is_embedding_tied:
            shapes["lm_head.weight"] = table
        layer_shapes = cls.layer_type.shapes(config)
        for layer in range(config.num_layers):
            shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in layer_shapes.items()}
        return shapes
