"""A tiny Llama over bytes: a complete model directory, made in a moment, that every front end can run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tests.fakes import BOS_ID, EOS_ID, VOCAB_SIZE, write_byte_model

__all__ = ["write_byte_llama"]


def write_byte_llama(folder: Path, *, chat_template: str | None = None) -> Path:
    """Random weights, always the same, with the tokeniser of :func:`write_byte_model`."""
    config: Any = transformers.LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
    )
    auto_class: Any = transformers.AutoModelForCausalLM
    model = auto_class.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5)
    write_byte_model(folder, chat_template=chat_template)
    model.save_pretrained(str(folder))
    return folder
