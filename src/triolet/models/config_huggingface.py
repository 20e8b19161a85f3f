"""``config.json`` of a Hugging Face directory → :class:`ModelConfig`.

Absent fields take the value that the model's class in ``transformers`` gives them. Features that change the
result and are not supported are refused by name, never skipped. This module reads no file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from triolet.errors import ModelFileError, UnknownArchitectureError
from triolet.models.config import Activation, ExpertsConfig, ModelConfig, RopeConfig
from triolet.models.config_fields import Fields
from triolet_kernels.expert_ops import MAX_EXPERTS

__all__ = ["from_huggingface"]

Windows = tuple[int | None, ...]

_ARCHITECTURE_OF_CLASS = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3",
    "MixtralForCausalLM": "mixtral",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "OlmoeForCausalLM": "olmoe",
}
_ARCHITECTURE_OF_TYPE = {
    "llama": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3_text": "gemma3",
    "mixtral": "mixtral",
    "qwen2_moe": "qwen2_moe",
    "qwen3_moe": "qwen3_moe",
    "olmoe": "olmoe",
}


@dataclass(frozen=True, slots=True)
class _Family:
    """How the ``config.json`` of one architecture is to be read."""

    activation: Activation
    activation_field: str
    windows: Callable[[Fields, int], Windows]
    default_num_kv_heads: int | None = None
    default_head_dim: int | None = None
    default_eps: float = 1e-6
    default_theta: float = 10_000.0
    experts: Callable[[Fields], ExpertsConfig] | None = None
    has_attention_bias: bool = False
    has_qk_norm: bool = False
    has_wide_qk_norm: bool = False
    is_embedding_tied: bool = False


def from_huggingface(document: Mapping[str, Any], *, source: str = "config.json") -> ModelConfig:
    """Read a parsed ``config.json``; ``source`` names it in errors.

    Raises :class:`UnknownArchitectureError`, or :class:`ModelFileError` naming the field.
    """
    fields = Fields(document, source)
    architecture = _architecture(fields)
    family = _FAMILIES[architecture]
    _refuse_unsupported(fields, family)
    hidden_size = fields.integer("hidden_size")
    num_layers = fields.integer("num_hidden_layers", high=4096)
    num_heads = fields.integer("num_attention_heads", high=4096)
    num_kv_heads = fields.integer("num_key_value_heads", family.default_num_kv_heads or num_heads, high=4096)
    if num_heads % num_kv_heads:
        fields.fail("num_key_value_heads", f"is {num_kv_heads}, which does not divide {num_heads} heads")
    head_dim = _head_dim(fields, family, hidden_size, num_heads)
    windows = family.windows(fields, num_layers)
    is_gemma = architecture == "gemma3"
    rope, local_rope = _gemma_ropes(fields, head_dim) if is_gemma else (_rope(fields, head_dim, family), None)
    scalar = fields.number("query_pre_attn_scalar", 256) if is_gemma else head_dim
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size", high=1 << 24),
        hidden_size=hidden_size,
        intermediate_size=_intermediate_size(fields, architecture),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=fields.number("rms_norm_eps", family.default_eps, high=1.0),
        max_position_embeddings=fields.integer("max_position_embeddings", high=1 << 30),
        rope=rope,
        local_rope=local_rope,
        windows=windows,
        attention_scale=scalar**-0.5,
        has_attention_bias=family.has_attention_bias,
        has_qk_norm=family.has_qk_norm,
        has_wide_qk_norm=family.has_wide_qk_norm,
        is_embedding_tied=fields.flag("tie_word_embeddings", family.is_embedding_tied),
        embedding_multiplier=hidden_size**0.5 if is_gemma else 1.0,
        activation=family.activation,
        experts=None if family.experts is None else family.experts(fields),
    )


def _architecture(fields: Fields) -> str:
    names = fields.get("architectures", None)
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        fields.fail("architectures", "must be an array of strings")
    known = [_ARCHITECTURE_OF_CLASS[name] for name in names or () if name in _ARCHITECTURE_OF_CLASS]
    if known:
        return known[0]
    model_type = fields.text("model_type", "")
    if not names and model_type in _ARCHITECTURE_OF_TYPE:
        return _ARCHITECTURE_OF_TYPE[model_type]
    named = ", ".join(names or ()) or model_type
    if not named:
        raise ModelFileError(f"{fields.source}: neither architectures nor model_type says what the model is")
    raise UnknownArchitectureError(
        f"{fields.source}: the architecture {named[:200]} is not supported; "
        f"known are {', '.join(_ARCHITECTURE_OF_CLASS)}"
    )


def _refuse_unsupported(fields: Fields, family: _Family) -> None:
    for name in ("quantization_config", "attn_logit_softcapping", "final_logit_softcapping", "clip_qkv"):
        fields.refuse_unless(name)
    if family.experts is None:
        for name in ("num_experts", "num_local_experts"):
            fields.refuse_unless(name)
    for name in (
        "attention_bias", "mlp_bias", "use_bidirectional_attention", "is_encoder_decoder", "rope_interleaved",
    ):  # fmt: skip
        if not (name == "attention_bias" and family.has_attention_bias):
            fields.refuse_unless(name, False)
    for name in ("partial_rotary_factor", "rope_partial_factor"):
        fields.refuse_unless(name, 1, 1.0)
    if family.has_attention_bias:
        fields.refuse_unless("qkv_bias", True)
    names = {"silu": ("silu", "swish"), "gelu_tanh": ("gelu_pytorch_tanh", "gelu_new")}[family.activation]
    fields.refuse_unless(family.activation_field, *names)


def _head_dim(fields: Fields, family: _Family, hidden_size: int, num_heads: int) -> int:
    default = family.default_head_dim
    if default is None:
        if fields.get("head_dim", None) is None and hidden_size % num_heads:
            fields.fail("hidden_size", f"is {hidden_size}, which {num_heads} heads do not divide")
        default = hidden_size // num_heads or 1
    head_dim = fields.integer("head_dim", default, high=4096)
    if head_dim % 2:
        fields.fail("head_dim", f"is {head_dim}, but must be even")
    return head_dim


def _intermediate_size(fields: Fields, architecture: str) -> int:
    defaults = {"qwen2_moe": 1408, "qwen3_moe": 768}
    if architecture in defaults:
        return fields.integer("moe_intermediate_size", defaults[architecture])
    return fields.integer("intermediate_size")


def _mixtral_experts(fields: Fields) -> ExpertsConfig:
    return _experts(fields, "num_local_experts", 8, 2, is_normalized=True)


def _qwen2_experts(fields: Fields) -> ExpertsConfig:
    """Those of Qwen2, beside which there is a shared one."""
    _refuse_dense_layers(fields)
    is_normalized = fields.flag("norm_topk_prob", False)
    chosen = _experts(fields, "num_experts", 60, 4, is_normalized=is_normalized)
    return replace(chosen, shared_size=fields.integer("shared_expert_intermediate_size", 5632))


def _qwen_experts(fields: Fields) -> ExpertsConfig:
    """Those of Qwen3, which may be normalised."""
    _refuse_dense_layers(fields)
    is_normalized = fields.flag("norm_topk_prob", False)
    name = "num_experts" if fields.get("num_local_experts", None) is None else "num_local_experts"
    return _experts(fields, name, 128, 8, is_normalized=is_normalized)


def _refuse_dense_layers(fields: Fields) -> None:
    """All layers have experts."""
    fields.refuse_unless("decoder_sparse_step", 1)
    fields.refuse_unless("mlp_only_layers", [])


def _olmoe_experts(fields: Fields) -> ExpertsConfig:
    is_normalized = fields.flag("norm_topk_prob", False)
    return _experts(fields, "num_experts", 64, 8, is_normalized=is_normalized)


def _experts(
    fields: Fields, name: str, default_count: int, default_chosen: int, *, is_normalized: bool
) -> ExpertsConfig:
    count = fields.integer(name, default_count, high=MAX_EXPERTS)
    num_chosen = fields.integer("num_experts_per_tok", default_chosen, high=count)
    return ExpertsConfig(count=count, num_chosen=num_chosen, is_normalized=is_normalized)


def _rope(fields: Fields, head_dim: int, family: _Family) -> RopeConfig:
    parameters = fields.section("rope_parameters")
    default = _theta(fields, "rope_theta", family.default_theta)
    if parameters is None:
        return _scaled_rope(fields.section("rope_scaling"), default, head_dim)
    return _scaled_rope(parameters, _theta(parameters, "rope_theta", default), head_dim)


def _gemma_ropes(fields: Fields, head_dim: int) -> tuple[RopeConfig, RopeConfig]:
    theta = _theta(fields, "rope_theta", 1_000_000.0)
    local_theta = _theta(fields, "rope_local_base_freq", 10_000.0)
    parameters = fields.section("rope_parameters")
    if parameters is None:
        scaling = fields.section("rope_scaling")
        return _scaled_rope(scaling, theta, head_dim), RopeConfig(theta=local_theta, dim=head_dim)
    full = parameters.section("full_attention")
    local = parameters.section("sliding_attention")
    return (
        _scaled_rope(full, _theta(full, "rope_theta", theta), head_dim),
        _scaled_rope(local, _theta(local, "rope_theta", local_theta), head_dim),
    )


def _theta(fields: Fields | None, name: str, default: float) -> float:
    return default if fields is None else fields.number(name, default)


def _scaled_rope(scaling: Fields | None, theta: float, dim: int) -> RopeConfig:
    if scaling is None:
        return RopeConfig(theta=theta, dim=dim)
    scaling.refuse_unless("partial_rotary_factor", 1, 1.0)
    kind_field = "rope_type" if scaling.get("rope_type", None) is not None else "type"
    kind = scaling.text(kind_field, "default")
    if kind == "default":
        return RopeConfig(theta=theta, dim=dim)
    scaling.refuse_unless(kind_field, "default", "linear", "llama3")
    factor = scaling.number("factor")
    if kind == "linear":
        return RopeConfig(theta=theta, dim=dim, scaling_kind="linear", factor=factor)
    low = scaling.number("low_freq_factor")
    return RopeConfig(
        theta=theta,
        dim=dim,
        scaling_kind="llama3",
        factor=factor,
        low_freq_factor=low,
        high_freq_factor=scaling.number("high_freq_factor", low=low),
        original_max_position_embeddings=scaling.integer("original_max_position_embeddings", high=1 << 30),
    )


def _no_windows(_fields: Fields, num_layers: int) -> Windows:
    return (None,) * num_layers


def _mistral_windows(fields: Fields, num_layers: int) -> Windows:
    if "sliding_window" in fields.values and fields.values["sliding_window"] is None:
        return (None,) * num_layers
    return (fields.integer("sliding_window", 4096, high=1 << 30),) * num_layers


def _qwen_windows(fields: Fields, num_layers: int) -> Windows:
    if not fields.flag("use_sliding_window", False):
        return (None,) * num_layers
    window = fields.integer("sliding_window", 4096, high=1 << 30)
    first = fields.integer("max_window_layers", 28, low=0)
    return _layer_types(fields, window, [layer >= first for layer in range(num_layers)])


def _mixtral_windows(fields: Fields, num_layers: int) -> Windows:
    if fields.get("sliding_window", None) is None:
        return (None,) * num_layers
    return _mistral_windows(fields, num_layers)


def _qwen_moe_windows(fields: Fields, num_layers: int) -> Windows:
    """All layers have a window or none has."""
    if not fields.flag("use_sliding_window", False):
        return (None,) * num_layers
    return (fields.integer("sliding_window", 4096, high=1 << 30),) * num_layers


def _qwen2_moe_windows(fields: Fields, num_layers: int) -> Windows:
    """Every other layer has one, up to ``max_window_layers``."""
    if not fields.flag("use_sliding_window", False):
        return (None,) * num_layers
    window = fields.integer("sliding_window", 4096, high=1 << 30)
    end = fields.integer("max_window_layers", 28, low=0)
    return _layer_types(fields, window, [layer % 2 == 0 and layer < end for layer in range(num_layers)])


def _gemma_windows(fields: Fields, num_layers: int) -> Windows:
    window = fields.integer("sliding_window", 4096, high=1 << 30)
    default = fields.integer("_sliding_window_pattern", 6)
    pattern = fields.integer("sliding_window_pattern", default)
    return _layer_types(fields, window, [(layer + 1) % pattern != 0 for layer in range(num_layers)])


def _layer_types(fields: Fields, window: int, default: list[bool]) -> Windows:
    """The windows by ``layer_types``; ``default`` says which layers are local where it is absent."""
    types = fields.get("layer_types", None)
    if types is None:
        return tuple(window if is_local else None for is_local in default)
    known = {"full_attention": None, "sliding_attention": window}
    if not isinstance(types, list) or len(types) != len(default):
        fields.fail("layer_types", f"must be an array of {len(default)} strings, one per layer")
    for name in types:
        if not isinstance(name, str) or name not in known:
            fields.fail("layer_types", f"may hold {' and '.join(known)} only, got {str(name)[:40]!r}")
    return tuple(known[name] for name in types)


_FAMILIES = {
    "llama": _Family("silu", "hidden_act", _no_windows),
    "mistral": _Family("silu", "hidden_act", _mistral_windows, default_num_kv_heads=8),
    "qwen2": _Family("silu", "hidden_act", _qwen_windows, default_num_kv_heads=32, has_attention_bias=True),
    "qwen3": _Family(
        "silu", "hidden_act", _qwen_windows, default_num_kv_heads=32, default_head_dim=128, has_qk_norm=True
    ),
    "gemma3": _Family(
        "gelu_tanh", "hidden_activation", _gemma_windows, default_num_kv_heads=4, default_head_dim=256,
        has_qk_norm=True, is_embedding_tied=True,
    ),
    "mixtral": _Family(
        "silu", "hidden_act", _mixtral_windows, default_num_kv_heads=8, default_eps=1e-5, default_theta=1e6,
        experts=_mixtral_experts,
    ),
    "qwen2_moe": _Family(
        "silu", "hidden_act", _qwen2_moe_windows, default_num_kv_heads=16, has_attention_bias=True,
        experts=_qwen2_experts,
    ),
    "qwen3_moe": _Family(
        "silu", "hidden_act", _qwen_moe_windows, default_num_kv_heads=4, has_qk_norm=True,
        experts=_qwen_experts,
    ),
    "olmoe": _Family(
        "silu", "hidden_act", _no_windows, default_eps=1e-5, has_wide_qk_norm=True, experts=_olmoe_experts
    ),
}  # fmt: skip
