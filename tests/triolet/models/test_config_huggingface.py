"""``config.json``: the configs that ``transformers`` writes are read, the rest is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig

from triolet.errors import ModelFileError, ModelLoadError, UnknownArchitectureError
from triolet.models.config import ARCHITECTURES, ExpertsConfig, ModelConfig
from triolet.models.config_huggingface import from_huggingface

SIZES: dict[str, Any] = {
    "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
}  # fmt: skip
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SIZES}
GEMMA = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", **SIZES, "sliding_window": 32}
MODEL_TYPES = [name if name != "gemma3" else "gemma3_text" for name in ARCHITECTURES]


def written(model_type: str, **changes: Any) -> dict[str, Any]:
    """What ``transformers`` writes for a config."""
    text = AutoConfig.for_model(model_type, **{**SIZES, **changes}).to_json_string()
    return {name: value for name, value in json.loads(text).items() if name != "architectures"}


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_sizes_are_those_that_transformers_wrote(model_type: str) -> None:
    config = from_huggingface(written(model_type, head_dim=32))
    assert config.architecture == model_type.removesuffix("_text")
    sizes = (config.vocab_size, config.hidden_size, config.intermediate_size, config.num_layers)
    assert sizes == (1000, 64, {"qwen2_moe": 1408, "qwen3_moe": 768}.get(model_type, 96), 7)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 32)
    assert (config.max_position_embeddings, config.rms_norm_eps) == (512, 1e-5)
    assert config.rope.dim == 32
    assert config.is_embedding_tied == (model_type == "gemma3_text")


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_absent_fields_take_the_value_of_transformers(model_type: str) -> None:
    """Every field that is not a size is left out; the result is that of the full config."""
    required = {*SIZES, "model_type"} - {"rms_norm_eps"}
    full = written(model_type, rms_norm_eps=1e-5 if model_type in ("mixtral", "olmoe") else 1e-6)
    assert from_huggingface({name: full[name] for name in required}) == from_huggingface(full)


def test_features_of_each_architecture() -> None:
    configs = {name: from_huggingface(written(name)) for name in MODEL_TYPES}
    assert [name for name, config in configs.items() if config.has_attention_bias] == [
        "qwen2",
        "qwen2_moe",
    ]
    assert [name for name, config in configs.items() if config.has_qk_norm] == [
        "qwen3",
        "gemma3_text",
        "qwen3_moe",
    ]
    assert [name for name, config in configs.items() if config.activation == "gelu_tanh"] == ["gemma3_text"]
    assert {config.embedding_multiplier for name, config in configs.items() if "gemma" not in name} == {1.0}
    assert configs["gemma3_text"].embedding_multiplier == 8.0
    assert configs["gemma3_text"].attention_scale == 256**-0.5
    assert configs["llama"].attention_scale == 16**-0.5


def test_experts() -> None:
    mixtral = from_huggingface(written("mixtral", num_local_experts=4, num_experts_per_tok=3))
    assert mixtral.experts == ExpertsConfig(count=4, num_chosen=3, is_normalized=True)
    sizes = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 24}
    for is_normalized in (True, False):
        qwen = from_huggingface(written("qwen3_moe", norm_topk_prob=is_normalized, **sizes))
        assert qwen.experts == ExpertsConfig(count=16, num_chosen=4, is_normalized=is_normalized)
        assert qwen.intermediate_size == 24
    qwen = from_huggingface(written("qwen2_moe", shared_expert_intermediate_size=80, **sizes))
    expected = ExpertsConfig(count=16, num_chosen=4, is_normalized=False, shared_size=80)
    assert (qwen.experts, qwen.intermediate_size) == (expected, 24)
    with pytest.raises(ModelFileError, match="qkv_bias is False, which is not supported"):
        from_huggingface(written("qwen2_moe", qkv_bias=False))
    olmoe = from_huggingface(written("olmoe", num_experts=4, num_experts_per_tok=2))
    assert olmoe.experts == ExpertsConfig(count=4, num_chosen=2, is_normalized=False)
    assert (olmoe.has_wide_qk_norm, olmoe.has_qk_norm) == (True, False)
    with pytest.raises(ModelFileError, match=r"clip_qkv is 8\.0, which is not supported"):
        from_huggingface(written("olmoe", clip_qkv=8.0))
    older = {"architectures": ["Qwen3MoeForCausalLM"], **SIZES, "num_experts": 32}
    assert from_huggingface(older).num_experts == 32
    assert from_huggingface(LLAMA).num_experts == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts": 2000}, r"num_experts must be an integer in \[1, 1024\]"),
        ({"num_experts": 0}, "num_experts must be"),
        ({"num_experts_per_tok": 129}, r"num_experts_per_tok must be an integer in \[1, 128\], got 129"),
        ({"moe_intermediate_size": 0}, "moe_intermediate_size must be"),
        ({"norm_topk_prob": 1}, "norm_topk_prob must be true or false"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step is 2, which is not supported; supported: 1"),
        ({"mlp_only_layers": [0]}, "mlp_only_layers is an array of 1, which is not supported"),
    ],
)
def test_wrong_values_of_experts_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        from_huggingface({"model_type": "qwen3_moe", **SIZES, **changes})


def windows(document: dict[str, Any], **changes: Any) -> tuple[int | None, ...]:
    return from_huggingface({**document, **changes}).windows


def test_windows() -> None:
    assert windows(LLAMA) == (None,) * 7
    assert windows(written("mistral", sliding_window=64)) == (64,) * 7
    assert windows(written("mistral", sliding_window=None)) == (None,) * 7
    assert windows(written("qwen2", sliding_window=64)) == (None,) * 7
    assert windows(written("mixtral")) == (None,) * 7
    assert windows(written("mixtral", sliding_window=64)) == (64,) * 7
    assert windows(written("qwen2_moe", sliding_window=64)) == (None,) * 7
    moe = written("qwen2_moe", use_sliding_window=True, sliding_window=64, max_window_layers=5)
    every_other = (64, None) * 2 + (64, None, None)
    assert windows(moe) == every_other
    assert windows({name: value for name, value in moe.items() if name != "layer_types"}) == every_other
    moe = written("qwen3_moe", use_sliding_window=True, sliding_window=64)
    assert windows(moe) == (64,) * 7
    qwen = written("qwen3", use_sliding_window=True, sliding_window=64, max_window_layers=5)
    assert windows(qwen) == (None,) * 5 + (64,) * 2
    assert windows(written("gemma3_text", sliding_window=64)) == (64,) * 5 + (None, 64)
    assert windows(GEMMA, sliding_window_pattern=3) == (32, 32, None, 32, 32, None, 32)
    types = ["full_attention"] * 6 + ["sliding_attention"]
    assert windows(GEMMA, layer_types=types) == (None,) * 6 + (32,)


def test_local_rope_is_for_layers_with_a_window() -> None:
    config = from_huggingface({**GEMMA, "rope_theta": 5000.0, "rope_local_base_freq": 70.0})
    assert config.local_rope is not None
    assert [config.rope_of(layer).theta for layer in range(7)] == [70.0] * 5 + [5000.0, 70.0]
    plain = from_huggingface(LLAMA)
    assert plain.local_rope is None
    assert plain.rope_of(0) is plain.rope


LLAMA3_ROPE: dict[str, Any] = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}  # fmt: skip


@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
def test_rope_scaling_in_both_spellings(spelling: str) -> None:
    if spelling == "rope_scaling":
        document = {**LLAMA, "rope_theta": 7.0, "rope_scaling": LLAMA3_ROPE}
    else:
        document = {**LLAMA, "rope_parameters": {"rope_theta": 7.0, **LLAMA3_ROPE}}
    rope = from_huggingface(document).rope
    assert (rope.theta, rope.scaling_kind, rope.factor) == (7.0, "llama3", 8.0)
    assert (rope.low_freq_factor, rope.high_freq_factor) == (1.0, 4.0)
    assert rope.original_max_position_embeddings == 256


def test_linear_rope_scaling_and_its_old_name() -> None:
    for key in ("type", "rope_type"):
        rope = from_huggingface({**LLAMA, "rope_scaling": {key: "linear", "factor": 2.5}}).rope
        assert (rope.scaling_kind, rope.factor) == ("linear", 2.5)
    gemma = from_huggingface({**GEMMA, "rope_scaling": {"rope_type": "linear", "factor": 8.0}})
    assert gemma.rope.factor == 8.0
    assert gemma.local_rope is not None
    assert gemma.local_rope.scaling_kind is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": -64}, r"hidden_size must be an integer in \[1, 1048576\], got -64"),
        ({"hidden_size": 0}, "hidden_size must be"),
        ({"hidden_size": 2**60}, "hidden_size must be"),
        ({"hidden_size": 10**100}, "hidden_size must be .*, got a huge integer"),
        ({"hidden_size": 64.0}, "hidden_size must be .*, got 64.0"),
        ({"hidden_size": "64"}, "hidden_size must be .*, got '64'"),
        ({"hidden_size": True}, "hidden_size must be .*, got True"),
        ({"hidden_size": [64]}, "hidden_size must be .*, got an array of 1"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": 66}, "hidden_size is 66, which 4 heads do not divide"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3, which does not divide 4 heads"),
        ({"head_dim": 15}, "head_dim is 15, but must be even"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be a number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a number"),
        ({"rope_theta": float("inf")}, "rope_theta must be a number"),
        ({"rope_theta": 10**400}, "rope_theta must be a number"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false"),
        ({"rope_scaling": "linear"}, "rope_scaling must be an object"),
        ({"rope_scaling": {"type": "linear"}}, r"rope_scaling\.factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": -1}}, r"rope_scaling\.factor must be"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, r"rope_type is 'yarn', which is not"),
        ({"rope_scaling": {**LLAMA3_ROPE, "high_freq_factor": 0.5}}, r"rope_scaling\.high_freq_factor must"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, r"parameters\.partial_rotary_factor is 0.5"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, which is not supported"),
        ({"attention_bias": True}, "attention_bias is True, .*; supported: False or absent"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu', which is not supported; supported: 'silu'"),
        ({"num_experts": 8}, "num_experts is 8, which is not supported"),
        ({"num_local_experts": 8}, "num_local_experts is 8, which is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is an object of 1, which"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0, which is not supported"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0, which is not supported"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        ({"architectures": "LlamaForCausalLM"}, "architectures must be an array of strings"),
        ({"architectures": None, "model_type": None}, "neither architectures nor model_type"),
    ],
)  # fmt: skip
def test_wrong_and_unsupported_values_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message) as error:
        from_huggingface({**LLAMA, **changes}, source="dir/config.json")
    assert error.value.message.startswith("dir/config.json: ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types must be an array of 7"),
        ({"layer_types": ["chunked_attention"] * 7}, "layer_types may hold .*, got 'chunked_attention'"),
        ({"layer_types": [[]] * 7}, "layer_types may hold"),
        ({"sliding_window": 0}, "sliding_window must be"),
        ({"sliding_window_pattern": 0}, "sliding_window_pattern must be"),
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar must be"),
        ({"rope_parameters": {"full_attention": 1}}, r"rope_parameters\.full_attention must be an object"),
    ],
)
def test_wrong_values_of_gemma_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        from_huggingface({**GEMMA, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["MambaForCausalLM"]},
        {"architectures": ["LlamaForSequenceClassification"]},
        {"architectures": None, "model_type": "mamba"},
    ],
)
def test_an_unknown_architecture_is_named_and_the_known_ones_are_listed(changes: dict[str, Any]) -> None:
    with pytest.raises(UnknownArchitectureError, match=r"known are LlamaForCausalLM, .*Gemma3") as error:
        from_huggingface({**LLAMA, **changes})
    assert str((changes["architectures"] or [changes.get("model_type")])[0]) in error.value.message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(
    sorted({*GEMMA, *LLAMA3_ROPE, "head_dim", "rope_parameters", "rope_scaling", "layer_types"})
)


@settings(max_examples=300, deadline=None)
@given(document=st.sampled_from([LLAMA, GEMMA]), changes=st.dictionaries(NAMES, JSON, max_size=4))
def test_any_json_gives_a_config_or_our_error(document: dict[str, Any], changes: dict[str, Any]) -> None:
    try:
        config = from_huggingface({**document, **changes})
    except ModelLoadError:
        return
    assert isinstance(config, ModelConfig)
    assert len(config.windows) == config.num_layers
