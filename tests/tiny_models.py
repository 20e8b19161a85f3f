"""Tiny random models of every architecture, made by ``transformers`` and written as files.

They are seeded, and every weight is random, norms and biases too, so that no part can be left out unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from torch import Tensor

__all__ = ["GGUF_MODELS", "TINY_MODELS", "build_tiny_model", "load_dequantised", "save_gguf"]

SIZES: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-3,
}
ODD_SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 54,
    "intermediate_size": 77,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 200,
    "rms_norm_eps": 1e-3,
}
GEMMA_SIZES: dict[str, Any] = {
    **SIZES,
    "num_hidden_layers": 7,
    "head_dim": 32,
    "sliding_window": 9,
    "query_pre_attn_scalar": 24,
}
LLAMA3_ROPE: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR_ROPE: dict[str, Any] = {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0}

Factory = Callable[[], Any]

TINY_MODELS: Mapping[str, Factory] = {
    "llama2": lambda: transformers.LlamaConfig(**SIZES | {"num_key_value_heads": 4}),
    "llama3": lambda: transformers.LlamaConfig(**SIZES, rope_parameters=LLAMA3_ROPE),
    "llama-linear-odd": lambda: transformers.LlamaConfig(**ODD_SIZES, rope_parameters=LINEAR_ROPE),
    "llama-tied": lambda: transformers.LlamaConfig(**SIZES, tie_word_embeddings=True),
    "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=11),
    "mistral-odd": lambda: transformers.MistralConfig(**ODD_SIZES, head_dim=22, sliding_window=None),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen2-window": lambda: transformers.Qwen2Config(
        **ODD_SIZES, use_sliding_window=True, sliding_window=7, max_window_layers=1
    ),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, head_dim=32),
    "qwen3-odd": lambda: transformers.Qwen3Config(**ODD_SIZES, head_dim=10, tie_word_embeddings=True),
    "gemma3": lambda: transformers.Gemma3TextConfig(**GEMMA_SIZES),
    "gemma3-odd": lambda: transformers.Gemma3TextConfig(
        **ODD_SIZES,
        head_dim=26,
        sliding_window=5,
        layer_types=["full_attention", "sliding_attention"],
        query_pre_attn_scalar=18,
    ),
    "mixtral": lambda: transformers.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2),
    "qwen2-moe": lambda: transformers.Qwen2MoeConfig(
        **SIZES,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=128,
        num_experts=6,
        num_experts_per_tok=2,
    ),
    "qwen2-moe-odd": lambda: transformers.Qwen2MoeConfig(
        **ODD_SIZES,
        moe_intermediate_size=21,
        shared_expert_intermediate_size=39,
        num_experts=5,
        num_experts_per_tok=3,
        norm_topk_prob=True,
        use_sliding_window=True,
        sliding_window=7,
    ),
    "qwen3-moe": lambda: transformers.Qwen3MoeConfig(
        **SIZES | {"head_dim": 32},
        moe_intermediate_size=64,
        num_experts=8,
        num_experts_per_tok=3,
        norm_topk_prob=True,
    ),
    "qwen3-moe-odd": lambda: transformers.Qwen3MoeConfig(
        **ODD_SIZES | {"head_dim": 10}, moe_intermediate_size=21, num_experts=5, num_experts_per_tok=2
    ),
    "olmoe": lambda: transformers.OlmoeConfig(**SIZES, num_experts=6, num_experts_per_tok=3),
}
"""Configs by name. Windows are shorter than the prompts of the tests."""

GGUF_MODELS = (
    "llama2",
    "llama-tied",
    "qwen2",
    "qwen3",
    "gemma3",
    "mixtral",
    "qwen2-moe",
    "qwen3-moe",
    "olmoe",
)
"""Those whose rows are whole blocks of Q8_0 and which GGUF can say everything about."""


GGUF_ARCHITECTURES = {
    "gemma3_text": "gemma3",
    "mixtral": "llama",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
}
"""Those that GGUF has other names for."""


def build_tiny_model(name: str) -> Any:
    """The model, float32, for attention computed step by step."""
    config = TINY_MODELS[name]()
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    auto_class: Any = transformers.AutoModelForCausalLM
    model = auto_class.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(sum(name.encode()))
    is_norm_offset = name.startswith("gemma")
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(_random_parameter(key, parameter.shape, generator, is_norm_offset))
    return model


def _random_parameter(
    name: str, shape: torch.Size, generator: torch.Generator, is_norm_offset: bool
) -> Tensor:
    values = torch.randn(shape, generator=generator)
    if "norm" in name:
        return 0.3 * values + (0.0 if is_norm_offset else 1.0)
    if name.endswith(".bias"):
        return 0.5 * values
    return values if "embed" in name else 1.5 * values / shape[-1] ** 0.5


def save_gguf(model: Any, path: Path, kind: str) -> dict[str, Tensor]:
    """Write the model with its matrices as ``kind`` (``"F32"`` or ``"Q8_0"``).

    → the Hugging Face state dict that the file stands for, i.e. after the rounding of ``kind``.
    """
    config = model.config
    architecture = GGUF_ARCHITECTURES.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, architecture)
    _write_metadata(writer, config, architecture)
    names = gguf.get_tensor_name_map(_model_arch(architecture), config.num_hidden_layers)
    stored: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        base, _, ending = name.rpartition(".")
        values = parameter.detach().clone()
        if ".experts." in name:
            stored[name] = _write_experts(writer, name, values, kind)
            continue
        if architecture == "gemma3" and "norm" in name:
            values += 1.0
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        num_heads = heads.get(base.rpartition(".")[2]) if architecture == "llama" else None
        if num_heads is not None:
            values = _interleave_halves(values, num_heads)
        if "shared_expert_gate" in name:
            values = values[0]  # as llama.cpp's converter leaves it
        rounded = _write_tensor(writer, f"{names.get_name(base)}.{ending}", values, kind)
        if num_heads is not None:
            rounded = _separate_halves(rounded, num_heads)
        if architecture == "gemma3" and "norm" in name:
            rounded = rounded - 1.0
        stored[name] = rounded
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


def load_dequantised(model: Any, stored: Mapping[str, Tensor]) -> Any:
    """Give the model the weights that :func:`save_gguf` kept."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(stored[name])
    return model


def _model_arch(architecture: str) -> gguf.MODEL_ARCH:
    return {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[architecture]


def _write_metadata(writer: gguf.GGUFWriter, config: Any, architecture: str) -> None:
    rope = config.rope_parameters
    theta = rope["full_attention"]["rope_theta"] if architecture == "gemma3" else rope["rope_theta"]
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_rope_freq_base(theta)
    writer.add_rope_dimension_count(head_dim)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    if architecture in ("llama", "qwen2moe", "qwen3moe", "olmoe") and (
        num_experts := getattr(config, "num_experts", 0)
    ):
        writer.add_expert_count(num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if architecture == "qwen2moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if architecture in ("qwen2moe", "qwen3moe"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if architecture == "gemma3":
        writer.add_sliding_window(config.sliding_window)
        writer.add_attention_scale(config.query_pre_attn_scalar**-0.5)


def _write_tensor(writer: gguf.GGUFWriter, name: str, values: Tensor, kind: str) -> Tensor:
    """Write one tensor, matrices in ``kind``; → its values after rounding."""
    array = np.ascontiguousarray(values.numpy())
    if values.dim() == 1 or kind == "F32":
        writer.add_tensor(name, array)
        return values
    quant = gguf.GGMLQuantizationType[kind]
    blocks = gguf.quants.quantize(array, quant)
    writer.add_tensor(name, blocks, raw_dtype=quant)
    return torch.from_numpy(gguf.quants.dequantize(blocks, quant))


def _write_experts(writer: gguf.GGUFWriter, name: str, values: Tensor, kind: str) -> Tensor:
    """Write what is one tensor for all experts in ``transformers``, gates and ups stacked, as GGUF has it."""
    prefix = f"blk.{name.split('.')[2]}"
    if name.endswith("down_proj"):
        return _write_tensor(writer, f"{prefix}.ffn_down_exps.weight", values, kind)
    gates, ups = values.chunk(2, dim=1)
    return torch.cat(
        [
            _write_tensor(writer, f"{prefix}.ffn_gate_exps.weight", gates, kind),
            _write_tensor(writer, f"{prefix}.ffn_up_exps.weight", ups, kind),
        ],
        dim=1,
    )


def _interleave_halves(weight: Tensor, num_heads: int) -> Tensor:
    """Rows of each head from (first half, second half) to pairs: the order GGUF keeps for Llama."""
    rows, columns = weight.shape
    halves = weight.view(num_heads, 2, rows // num_heads // 2, columns)
    return halves.transpose(1, 2).reshape(rows, columns)


def _separate_halves(weight: Tensor, num_heads: int) -> Tensor:
    rows, columns = weight.shape
    pairs = weight.view(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns)
