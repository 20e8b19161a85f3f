"""What ``ModelConfig`` works out by itself."""

from __future__ import annotations

from triolet.models.config import ModelConfig, RopeConfig


def config(local_rope: RopeConfig | None) -> ModelConfig:
    return ModelConfig(
        architecture="gemma3", vocab_size=10, hidden_size=8, intermediate_size=8, num_layers=3, num_heads=2,
        num_kv_heads=1, head_dim=4, rms_norm_eps=1e-6, max_position_embeddings=32,
        rope=RopeConfig(theta=1e6, dim=4), local_rope=local_rope, windows=(4, None, 4), attention_scale=0.5,
    )  # fmt: skip


def test_the_local_rope_is_for_layers_with_a_window() -> None:
    assert [config(RopeConfig(theta=1e4, dim=4)).rope_of(layer).theta for layer in range(3)] == [
        1e4,
        1e6,
        1e4,
    ]


def test_without_a_local_rope_there_is_one_for_all() -> None:
    assert [config(None).rope_of(layer).theta for layer in range(3)] == [1e6] * 3
