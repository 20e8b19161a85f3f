"""``ModelConfig``: what a decoder-only model is made of, in one form for every file format.

It is made by :func:`triolet.models.config_huggingface.from_huggingface` and
:func:`triolet.models.config_gguf.from_gguf`, which check every value: a config that exists is one that can
be built. This module knows neither files nor torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["ARCHITECTURES", "Activation", "ExpertsConfig", "ModelConfig", "RopeConfig", "ScalingKind"]

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "gemma3", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe")

Activation = Literal["silu", "gelu_tanh"]
ScalingKind = Literal["linear", "llama3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding (Su 2021) over the first ``dim`` dimensions of a head.

    The inverse frequency i is ``theta ** (-2 i / dim)``, then, by ``scaling_kind``:

    - ``None``: as it is;
    - ``"linear"``: divided by ``factor`` (Chen 2023);
    - ``"llama3"``: the piecewise scaling of Llama 3.1 with ``factor``, ``low_freq_factor``,
      ``high_freq_factor`` and ``original_max_position_embeddings``.

    ``frequency_factors``, if any, are ``dim / 2`` numbers by which the inverse frequencies are divided
    besides: GGUF files keep the scaling of Llama 3 so, computed already.
    """

    theta: float
    dim: int
    scaling_kind: ScalingKind | None = None
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    frequency_factors: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """A mixture of ``count`` feed-forward networks in each layer, of which a token goes to ``num_chosen``.

    ``is_normalized``: what the chosen ones count adds up to 1, instead of to their share of all.
    ``shared_size``: inner width of one more network, which all tokens go through and which counts what a gate
    of its own says; 0 where there is none.
    """

    count: int
    num_chosen: int
    is_normalized: bool
    shared_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and features of a decoder-only model.

    ``architecture``: one of :data:`ARCHITECTURES`.
    ``intermediate_size``: inner width of the feed-forward network; of each expert where there are any.
    ``experts``: those of each layer; None for one feed-forward network that all tokens go through.
    ``windows``: one entry per layer: None for full attention, else how many last positions a token sees.
    ``local_rope``: the rotary embedding of layers with a window where it differs (Gemma 3); else None.
    ``attention_scale``: factor of query · key before the softmax.
    ``has_attention_bias``: the query, key and value projections have a bias (the output one never has).
    ``has_qk_norm``: queries and keys are RMS-normalised per head before rotation.
    ``has_wide_qk_norm``: they are so over all heads at once, instead.
    ``is_embedding_tied``: the output projection is the embedding table.
    ``embedding_multiplier``: factor of the embeddings that enter the first layer.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope: RopeConfig
    local_rope: RopeConfig | None = None
    windows: tuple[int | None, ...]
    attention_scale: float
    has_attention_bias: bool = False
    has_qk_norm: bool = False
    has_wide_qk_norm: bool = False
    is_embedding_tied: bool = False
    embedding_multiplier: float = 1.0
    activation: Activation = "silu"
    experts: ExpertsConfig | None = None

    @property
    def num_experts(self) -> int:
        """In each layer; 0 where there are none."""
        return 0 if self.experts is None else self.experts.count

    @property
    def group_windows(self) -> tuple[int | None, ...]:
        """The window of each group of layers: layers with the same one share block tables.

        Groups are in the order of their first layers.
        """
        return tuple(dict.fromkeys(self.windows))

    def rope_of(self, layer: int) -> RopeConfig:
        """The rotary embedding of a layer."""
        if self.local_rope is not None and self.windows[layer] is not None:
            return self.local_rope
        return self.rope
