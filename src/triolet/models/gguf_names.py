"""The names of GGUF tensors → the names that Hugging Face checkpoints give the same weights.

GGUF names: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#standardized-tensor-names.
"""

from __future__ import annotations

import re

__all__ = ["huggingface_name"]

_WHOLE_MODEL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_GEMMA_LAYER = _LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_PATTERN = re.compile(r"(?:blk\.(0|[1-9]\d{0,4})\.)?([a-z_]+)\.(weight|bias)", re.ASCII)

_OLD_EXPERT = re.compile(r"blk\.(0|[1-9]\d{0,4})\.ffn_(gate|up|down)\.(0|[1-9]\d{0,3})\.weight", re.ASCII)
"""Experts in tensors of their own, as files of Mixtral from before April 2024 have them."""


def huggingface_name(name: str, architecture: str) -> str:
    """The Hugging Face name of a tensor, or ``name`` itself if it has none."""
    old = _OLD_EXPERT.fullmatch(name)
    if old is not None:
        layer, projection, expert = old.groups()
        return f"model.layers.{layer}.mlp.experts.{expert}.{projection}_proj.weight"
    match = _PATTERN.fullmatch(name)
    if match is None:
        return name
    layer, stem, kind = match.groups()
    if layer is None:
        table, prefix = _WHOLE_MODEL, ""
    else:
        table, prefix = (_GEMMA_LAYER if architecture == "gemma3" else _LAYER), f"model.layers.{layer}."
    return f"{prefix}{table[stem]}.{kind}" if stem in table else name
