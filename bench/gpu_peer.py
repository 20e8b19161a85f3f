"""The same shapes with ``transformers``, where it can be imported: decodes over its own cache.

Knows nothing of how triolet runs them.
"""

from __future__ import annotations

import time

import torch

from triolet.models.config import ModelConfig

__all__ = ["transformers_decode"]


def transformers_decode(
    config: ModelConfig, device: torch.device, dtype: torch.dtype, *, batch: int, context: int, num_steps: int
) -> float:
    """Seconds of a decode step of ``batch`` sequences after ``context`` tokens each.

    Raises ImportError where it is not installed.
    """
    import transformers

    family = {"llama": "Llama", "qwen3": "Qwen3"}[config.architecture]
    settings = getattr(transformers, f"{family}Config")(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        rms_norm_eps=config.rms_norm_eps,
        max_position_embeddings=config.max_position_embeddings,
        tie_word_embeddings=config.is_embedding_tied,
    )
    with torch.device(device):
        model = getattr(transformers, f"{family}ForCausalLM")(settings).to(dtype).eval()
    with torch.inference_mode():
        tokens = torch.ones(batch, context, dtype=torch.int64, device=device)
        try:
            output = model(tokens, use_cache=True, logits_to_keep=1)
        except TypeError:  # versions before it had that name
            output = model(tokens, use_cache=True)
        taken = []
        for _ in range(num_steps):
            started = time.perf_counter()
            tokens = output.logits[:, -1].argmax(-1, keepdim=True)
            output = model(tokens, past_key_values=output.past_key_values, use_cache=True)
            if device.type != "cpu":
                torch.cuda.synchronize(device)
            taken.append(time.perf_counter() - started)
    return sorted(taken)[len(taken) // 2]
