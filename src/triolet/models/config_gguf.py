"""The metadata of a GGUF file → :class:`ModelConfig`.

Key names: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. GGUF keeps the output projection, the
vocabulary size and Llama 3's rope scaling in tensors rather than in keys, so the tensors' shapes are asked
for too. This module reads no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triolet.errors import UnknownArchitectureError
from triolet.models.config import ExpertsConfig, ModelConfig, RopeConfig
from triolet.models.config_fields import Fields
from triolet_kernels.expert_ops import MAX_EXPERTS

__all__ = ["from_gguf"]

_ARCHITECTURES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3": "gemma3",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "olmoe": "olmoe",
}
"""Ours by the file's; Mixtral is a Llama with experts here."""

_WITH_EXPERTS = ("llama", "qwen2moe", "qwen3moe", "olmoe")
"""Those that may have them; a Llama may do without."""

_UNSUPPORTED = (
    "attn_logit_softcapping", "final_logit_softcapping", "logit_scale", "residual_scale",
    "embedding_scale", "attention.clamp_kqv", "attention.max_alibi_bias", "attention.value_length_mla",
    "expert_shared_count", "leading_dense_block_count",
)  # fmt: skip

_GEMMA_27B_LAYERS = 62
"""The one Gemma 3 size whose attention scale is not by its head dimension, and no key says so."""


def from_gguf(
    metadata: Mapping[str, Any],
    tensor_shapes: Mapping[str, tuple[int, ...]],
    *,
    frequency_factors: tuple[float, ...] | None = None,
    source: str = "GGUF metadata",
) -> ModelConfig:
    """Read the metadata; ``tensor_shapes`` are by GGUF name, outermost dimension first.

    ``frequency_factors`` are the numbers of the tensor ``rope_freqs.weight``, where the file has one.
    Raises :class:`UnknownArchitectureError`, or :class:`ModelFileError` naming the key.
    """
    architecture = Fields(metadata, source).text("general.architecture")
    if architecture not in _ARCHITECTURES:
        raise UnknownArchitectureError(
            f"{source}: the architecture {architecture[:200]!r} is not supported; "
            f"known are {', '.join(_ARCHITECTURES)}"
        )
    Fields(metadata, source).refuse_unless("split.count", 0, 1)
    fields = Fields(metadata, source, architecture + ".")
    for name in _UNSUPPORTED:
        fields.refuse_unless(name, 0, 0.0)
    hidden_size = fields.integer("embedding_length")
    num_layers = fields.integer("block_count", high=4096)
    num_heads = fields.integer("attention.head_count", high=4096)
    num_kv_heads = fields.integer("attention.head_count_kv", num_heads, high=4096)
    if num_heads % num_kv_heads:
        fields.fail("attention.head_count_kv", f"is {num_kv_heads}, which does not divide {num_heads} heads")
    head_dim = _head_dim(fields, hidden_size, num_heads)
    is_gemma = architecture == "gemma3"
    experts = _experts(fields, architecture)
    rope = _rope(fields, head_dim, 1e6 if is_gemma else 1e4, frequency_factors)
    return ModelConfig(
        architecture=_ARCHITECTURES[architecture],
        vocab_size=_vocab_size(fields, tensor_shapes),
        hidden_size=hidden_size,
        intermediate_size=_intermediate_size(fields, experts),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon", high=1.0),
        max_position_embeddings=fields.integer("context_length", high=1 << 30),
        rope=rope,
        local_rope=_local_rope(fields, head_dim) if is_gemma else None,
        windows=_windows(fields, num_layers, is_gemma=is_gemma),
        attention_scale=_attention_scale(fields, is_gemma, num_layers, hidden_size // num_heads, head_dim),
        has_attention_bias=architecture in ("qwen2", "qwen2moe"),
        has_qk_norm=architecture in ("qwen3", "qwen3moe", "gemma3"),
        is_embedding_tied="output.weight" not in tensor_shapes,
        embedding_multiplier=hidden_size**0.5 if is_gemma else 1.0,
        activation="gelu_tanh" if is_gemma else "silu",
        has_wide_qk_norm=architecture == "olmoe",
        experts=experts,
    )


def _experts(fields: Fields, architecture: str) -> ExpertsConfig | None:
    """The experts of a file. What they count adds up to 1, but for OLMoE and Qwen2, as llama.cpp has it."""
    has_shared = architecture == "qwen2moe"
    if not has_shared:
        fields.refuse_unless("expert_shared_feed_forward_length", 0)
    if architecture not in _WITH_EXPERTS[1:] and not fields.get("expert_count", 0):
        return None
    if architecture not in _WITH_EXPERTS:
        fields.refuse_unless("expert_count", 0)
    is_normalized = architecture not in ("olmoe", "qwen2moe")
    for name, *allowed in (
        ("expert_weights_norm", is_normalized), ("expert_weights_scale", 0.0, 1.0),
        ("expert_gating_func", 0, 1), ("expert_group_count", 0, 1),
    ):  # fmt: skip
        fields.refuse_unless(str(name), *allowed)
    count = fields.integer("expert_count", high=MAX_EXPERTS)
    num_chosen = fields.integer("expert_used_count", high=count)
    shared_size = fields.integer("expert_shared_feed_forward_length") if has_shared else 0
    return ExpertsConfig(
        count=count, num_chosen=num_chosen, is_normalized=is_normalized, shared_size=shared_size
    )


def _intermediate_size(fields: Fields, experts: ExpertsConfig | None) -> int:
    if experts is not None and fields.get("expert_feed_forward_length", None) is not None:
        return fields.integer("expert_feed_forward_length")
    return fields.integer("feed_forward_length")


def _vocab_size(fields: Fields, tensor_shapes: Mapping[str, tuple[int, ...]]) -> int:
    shape = tensor_shapes.get("token_embd.weight", ())
    return shape[0] if len(shape) == 2 else fields.integer("vocab_size", high=1 << 24)


def _head_dim(fields: Fields, hidden_size: int, num_heads: int) -> int:
    if fields.get("attention.key_length", None) is None and hidden_size % num_heads:
        fields.fail("embedding_length", f"is {hidden_size}, which {num_heads} heads do not divide")
    head_dim = fields.integer("attention.key_length", hidden_size // num_heads or 1, high=4096)
    if head_dim % 2:
        fields.fail("attention.key_length", f"is {head_dim}, but must be even")
    for name in ("attention.value_length", "rope.dimension_count"):
        fields.refuse_unless(name, head_dim)
    return head_dim


def _rope(
    fields: Fields, head_dim: int, default_theta: float, frequency_factors: tuple[float, ...] | None
) -> RopeConfig:
    theta = fields.number("rope.freq_base", default_theta)
    kind = fields.text("rope.scaling.type", "none")
    fields.refuse_unless("rope.scaling.type", "none", "linear")
    if frequency_factors is not None and len(frequency_factors) != head_dim // 2:
        fields.fail(
            "rope.dimension_count",
            f"is {head_dim}, but rope_freqs.weight holds {len(frequency_factors)} factors, not half as many",
        )
    is_linear = kind == "linear"
    return RopeConfig(
        theta=theta,
        dim=head_dim,
        scaling_kind="linear" if is_linear else None,
        factor=fields.number("rope.scaling.factor") if is_linear else 1.0,
        frequency_factors=frequency_factors,
    )


def _local_rope(fields: Fields, head_dim: int) -> RopeConfig:
    return RopeConfig(theta=fields.number("rope.freq_base_swa", 10_000.0), dim=head_dim)


def _windows(fields: Fields, num_layers: int, *, is_gemma: bool) -> tuple[int | None, ...]:
    if fields.get("attention.sliding_window", None) is None and not is_gemma:
        return (None,) * num_layers
    window = fields.integer("attention.sliding_window", high=1 << 30)
    pattern_key = "attention.sliding_window_pattern"
    pattern = fields.get(pattern_key, 6 if is_gemma else num_layers + 1)
    if not isinstance(pattern, list):
        period = fields.integer(pattern_key, pattern)
        pattern = [(layer + 1) % period != 0 for layer in range(num_layers)]
    if len(pattern) != num_layers or not all(isinstance(is_local, bool) for is_local in pattern):
        fields.fail(pattern_key, f"must be an integer, or {num_layers} booleans, one per layer")
    return tuple(window if is_local else None for is_local in pattern)


def _attention_scale(
    fields: Fields, is_gemma: bool, num_layers: int, hidden_per_head: int, head_dim: int
) -> float:
    is_by_hidden_size = is_gemma and num_layers == _GEMMA_27B_LAYERS
    default = (hidden_per_head if is_by_hidden_size else head_dim) ** -0.5
    return fields.number("attention.scale", default)
