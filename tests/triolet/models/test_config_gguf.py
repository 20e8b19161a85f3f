"""GGUF metadata: what the keys mean, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from triolet.errors import ModelFileError, UnknownArchitectureError
from triolet.models.config import ExpertsConfig, ModelConfig
from triolet.models.config_gguf import from_gguf

Shapes = dict[str, tuple[int, ...]]

SHAPES: Shapes = {"token_embd.weight": (1000, 64)}


def read(architecture: str = "llama", shapes: Shapes = SHAPES, **changes: Any) -> ModelConfig:
    """``changes``: keys without the architecture, with __ for the dots."""
    keys: dict[str, Any] = {
        "context_length": 512, "embedding_length": 64, "feed_forward_length": 96, "block_count": 7,
        "attention.head_count": 4, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 5000.0,
    }  # fmt: skip
    if architecture == "gemma3":
        keys |= {"attention.sliding_window": 32, "attention.key_length": 256}
    keys |= {name.replace("__", "."): value for name, value in changes.items()}
    metadata = {f"{architecture}.{name}": value for name, value in keys.items() if value is not None}
    return from_gguf({"general.architecture": architecture, **metadata}, shapes, source="m.gguf")


def test_sizes() -> None:
    config = read()
    sizes = (config.vocab_size, config.hidden_size, config.intermediate_size, config.num_layers)
    assert sizes == (1000, 64, 96, 7)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 16)
    assert (config.max_position_embeddings, config.rms_norm_eps) == (512, 1e-5)
    assert (config.rope.theta, config.rope.dim, config.attention_scale) == (5000.0, 16, 0.25)
    assert config.is_embedding_tied
    assert not read(shapes={**SHAPES, "output.weight": (1000, 64)}).is_embedding_tied
    assert read(attention__key_length=32).head_dim == 32
    assert read(attention__head_count_kv=None).num_kv_heads == 4
    assert read(shapes={}, vocab_size=77).vocab_size == 77


def test_features_of_each_architecture() -> None:
    configs = {name: read(name) for name in ("llama", "qwen2", "qwen3", "gemma3")}
    assert [name for name, config in configs.items() if config.has_attention_bias] == ["qwen2"]
    assert [name for name, config in configs.items() if config.has_qk_norm] == ["qwen3", "gemma3"]
    assert [name for name, config in configs.items() if config.activation == "gelu_tanh"] == ["gemma3"]
    assert {name: config.windows for name, config in configs.items()} == {
        **dict.fromkeys(("llama", "qwen2", "qwen3"), (None,) * 7),
        "gemma3": (32,) * 5 + (None, 32),
    }


def test_gemma() -> None:
    config = read("gemma3", rope__scaling__type="linear", rope__scaling__factor=8.0)
    assert config.local_rope is not None
    assert (config.local_rope.theta, config.local_rope.scaling_kind) == (10_000.0, None)
    assert (config.rope.scaling_kind, config.rope.factor) == ("linear", 8.0)
    assert (config.embedding_multiplier, config.attention_scale) == (8.0, 1 / 16)
    assert read("gemma3", block_count=62).attention_scale == 0.25
    assert read("gemma3", attention__scale=0.125).attention_scale == 0.125
    assert read("gemma3", attention__sliding_window_pattern=2).windows == (32, None) * 3 + (32,)
    pattern = [True, False, False, True, True, True, True]
    expected = (32, None, None, 32, 32, 32, 32)
    assert read("gemma3", attention__sliding_window_pattern=pattern).windows == expected


def test_a_window_of_another_architecture_is_for_all_layers() -> None:
    assert read(attention__sliding_window=64).windows == (64,) * 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embedding_length": 2**32 - 1}, "llama.embedding_length must be an integer"),
        ({"embedding_length": 66}, "llama.embedding_length is 66, which 4 heads do not divide"),
        ({"block_count": 0}, "llama.block_count must be"),
        ({"block_count": None}, "llama.block_count is missing"),
        ({"attention__head_count": [4] * 7}, "head_count must be .* got an array of 7"),
        ({"attention__head_count_kv": 3}, "head_count_kv is 3, which does not divide 4 heads"),
        ({"attention__key_length": 17}, "key_length is 17, but must be even"),
        ({"attention__value_length": 8}, "value_length is 8, which is not supported; supported: 16"),
        ({"rope__dimension_count": 8}, "rope.dimension_count is 8, which is not supported"),
        ({"rope__scaling__type": "yarn"}, "rope.scaling.type is 'yarn', which is not supported"),
        ({"rope__scaling__type": "linear"}, "rope.scaling.factor is missing"),
        ({"rope__freq_base": float("nan")}, "rope.freq_base must be a number"),
        ({"expert_count": 8}, "llama.expert_used_count is missing"),
        ({"expert_count": 2000}, "llama.expert_count must be"),
        ({"expert_count": 8, "expert_used_count": 9}, r"expert_used_count must be an integer in \[1, 8\]"),
        ({"expert_count": 8, "expert_gating_func": 2}, "llama.expert_gating_func is 2, which"),
        ({"expert_count": 8, "expert_weights_norm": False}, "expert_weights_norm is False"),
        ({"expert_shared_count": 1}, "llama.expert_shared_count is 1"),
        (
            {"expert_count": 8, "expert_shared_feed_forward_length": 8},
            "shared_feed_forward_length is 8, which",
        ),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0"),
        ({"attention__sliding_window": 32, "attention__sliding_window_pattern": [True]}, "7 booleans"),
    ],
)
def test_wrong_and_unsupported_values_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message) as error:
        read(**changes)
    assert error.value.message.startswith("m.gguf: ")


def test_experts() -> None:
    mixtral = read(expert_count=8, expert_used_count=2)
    assert mixtral.experts == ExpertsConfig(count=8, num_chosen=2, is_normalized=True)
    assert (mixtral.architecture, mixtral.intermediate_size) == ("llama", 96)
    qwen = read("qwen3moe", expert_count=64, expert_used_count=4, expert_feed_forward_length=24)
    assert qwen.experts == ExpertsConfig(count=64, num_chosen=4, is_normalized=True)
    assert (qwen.architecture, qwen.intermediate_size, qwen.has_qk_norm) == ("qwen3_moe", 24, True)
    widths: dict[str, Any] = {"expert_feed_forward_length": 24, "expert_shared_feed_forward_length": 80}
    qwen = read("qwen2moe", expert_count=60, expert_used_count=4, **widths)
    assert qwen.experts == ExpertsConfig(count=60, num_chosen=4, is_normalized=False, shared_size=80)
    assert (qwen.architecture, qwen.intermediate_size, qwen.has_attention_bias) == ("qwen2_moe", 24, True)
    olmoe = read("olmoe", expert_count=64, expert_used_count=8)
    assert olmoe.experts == ExpertsConfig(count=64, num_chosen=8, is_normalized=False)
    assert (olmoe.has_wide_qk_norm, olmoe.has_qk_norm) == (True, False)
    assert read(expert_count=0).experts is None
    with pytest.raises(ModelFileError, match=r"qwen2\.expert_count is 8, which is not supported"):
        read("qwen2", expert_count=8)
    with pytest.raises(ModelFileError, match=r"qwen3moe\.expert_count is missing"):
        read("qwen3moe")


def test_an_unknown_architecture_is_named_and_the_known_ones_are_listed() -> None:
    with pytest.raises(UnknownArchitectureError, match=r"'mamba' is not .* llama, qwen2, qwen3, gemma3"):
        read("mamba")
    with pytest.raises(ModelFileError, match=r"general.architecture is missing"):
        from_gguf({}, SHAPES)


def test_a_file_that_is_one_of_several_is_refused() -> None:
    with pytest.raises(ModelFileError, match=r"split\.count is 3, which is not supported"):
        from_gguf({"general.architecture": "llama", "split.count": 3}, SHAPES)
