"""The names of tensors, against the table of the ``gguf`` package."""

from __future__ import annotations

import gguf
import pytest

from triolet.models.gguf_names import huggingface_name

LAYER = {
    "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "post_attention_layernorm",
}  # fmt: skip
DENSE = {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}
EXPERTS = {"mlp.gate", "mlp.experts.gate_proj", "mlp.experts.up_proj", "mlp.experts.down_proj"}
SHARED = {f"mlp.shared_expert{part}" for part in ("_gate", ".gate_proj", ".up_proj", ".down_proj")}
QK_NORMS = {"self_attn.q_norm", "self_attn.k_norm"}
SANDWICH_NORMS = {"pre_feedforward_layernorm", "post_feedforward_layernorm"}


@pytest.mark.parametrize(
    ("architecture", "number", "layer"),
    [
        ("llama", gguf.MODEL_ARCH.LLAMA, LAYER),
        ("qwen2", gguf.MODEL_ARCH.QWEN2, LAYER),
        ("qwen3", gguf.MODEL_ARCH.QWEN3, LAYER | QK_NORMS),
        ("llama", gguf.MODEL_ARCH.LLAMA, LAYER | EXPERTS),
        ("qwen2_moe", gguf.MODEL_ARCH.QWEN2MOE, (LAYER - DENSE) | EXPERTS | SHARED),
        ("qwen3_moe", gguf.MODEL_ARCH.QWEN3MOE, (LAYER - DENSE) | QK_NORMS | EXPERTS),
        ("olmoe", gguf.MODEL_ARCH.OLMOE, (LAYER - DENSE) | QK_NORMS | EXPERTS),
        ("gemma3", gguf.MODEL_ARCH.GEMMA3, LAYER | QK_NORMS | SANDWICH_NORMS),
    ],
)
def test_names_are_the_inverse_of_the_package(
    architecture: str, number: gguf.MODEL_ARCH, layer: set[str]
) -> None:
    names = gguf.get_tensor_name_map(number, 12)
    stems = {"model.embed_tokens", "model.norm", "lm_head", *(f"model.layers.11.{stem}" for stem in layer)}
    for stem in stems:
        for suffix in (".weight", ".bias"):
            name = names.get_name(stem + suffix, try_suffixes=(suffix,))
            assert name is not None
            assert huggingface_name(name, architecture) == stem + suffix


@pytest.mark.parametrize("projection", ["gate", "up", "down"])
def test_old_files_have_a_tensor_for_each_expert(projection: str) -> None:
    expected = f"model.layers.3.mlp.experts.12.{projection}_proj.weight"
    assert huggingface_name(f"blk.3.ffn_{projection}.12.weight", "llama") == expected


@pytest.mark.parametrize(
    "name",
    [
        "", "rope_freqs.weight", "blk.0.ffn_gate_chexps.weight", "blk.01.attn_q.weight", "blk.0.attn_q.scale",
        "blk.123456.attn_q.weight", "output.weight\n", "blk.1٣.attn_q.weight", "blk.0.token_embd.weight",
    ],
)  # fmt: skip
def test_other_names_stay(name: str) -> None:
    assert huggingface_name(name, "llama") == name
