"""What the fast mode costs in accuracy: perplexity on a fixed text, beside that of the float32 reference.

    python -m bench.perplexity
    python -m bench.perplexity --kv-cache-dtype int8
    python -m bench.perplexity --model path/to/model.gguf --num-tokens 4096 --dtype float32

The text is cut into runs of ``--context`` tokens; each token but the first of a run is predicted from those
before it. Perplexity is the exponential of the mean negative log-likelihood. It drives the model directly:
no scheduler and no sampler take part.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from triolet.args import DEFAULT_MODEL
from triolet.models.checkpoint import open_checkpoint
from triolet.models.loader import load_model
from triolet.models.source import ModelFiles, resolve_model
from triolet.text.tokenizer import load_tokenizer
from triolet_kernels.ops import AttentionBatch, select_ops
from triolet_kernels.preferred_dtype import preferred_dtype
from triolet_kernels.reference.cache_codes import entry_size

if TYPE_CHECKING:
    from triolet.models.decoder import Decoder

__all__ = ["TEXT", "load", "main", "perplexity"]

TEXT = Path(__file__).resolve().parent.parent / "tests" / "data" / "perplexity.txt"
BLOCK_SIZE = 32


def load(files: ModelFiles, *, is_reference: bool, dtype: torch.dtype, device: torch.device) -> Decoder:
    """The model with the reference operations, or with the fastest ones."""
    ops = select_ops(device, is_reference=is_reference)
    with open_checkpoint(files) as checkpoint:
        return load_model(checkpoint, ops, dtype=dtype, device=device)


def perplexity(
    model: Decoder, token_ids: Sequence[int], *, context: int, dtype: torch.dtype, device: torch.device
) -> float:
    """Perplexity of ``token_ids`` in runs of ``context`` tokens, with a KV cache of ``dtype``."""
    config = model.config
    size = entry_size(config.head_dim, dtype)
    shape = (-(-context // BLOCK_SIZE), config.num_kv_heads, BLOCK_SIZE, size)
    cache = [
        (
            torch.zeros(shape, dtype=dtype, device=device),
            torch.zeros(shape, dtype=dtype, device=device),
        )
        for _ in range(config.num_layers)
    ]
    total, count = 0.0, 0
    for start in range(0, len(token_ids) - 1, context):
        run = torch.tensor(token_ids[start : start + context], device=device)
        if len(run) < 2:
            break
        with torch.inference_mode():
            rows = torch.arange(len(run) - 1, device=device)
            batches = [_single_sequence(len(run), device)] * len(model.config.group_windows)
            hidden = model.forward(run, batches, cache, rows)
            total += _negative_log_likelihood(model.logits(hidden), run[1:])
        count += len(run) - 1
    return math.exp(total / count)


def _negative_log_likelihood(logits: Tensor, targets: Tensor) -> float:
    return functional.cross_entropy(logits, targets, reduction="none").double().sum().item()


def _single_sequence(length: int, device: torch.device) -> AttentionBatch:
    """One whole sequence, in blocks that follow one another."""
    positions = torch.arange(length, device=device)
    num_blocks = -(-length // BLOCK_SIZE)
    return AttentionBatch(
        positions=positions,
        cache_slots=positions,
        block_tables=torch.arange(num_blocks, dtype=torch.int32, device=device).unsqueeze(0),
        query_starts=torch.tensor([0, length], dtype=torch.int32, device=device),
        sequence_lengths=torch.tensor([length], dtype=torch.int32, device=device),
        max_query_length=length,
        max_sequence_length=length,
    )


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    device = torch.device(options.device)
    files = resolve_model(options.model)
    text = options.text.read_text(encoding="utf-8")
    token_ids = load_tokenizer(files).encode(text, add_special_tokens=False)[: options.num_tokens]
    fast_dtype = preferred_dtype(device) if options.dtype == "auto" else getattr(torch, options.dtype)
    print(f"{files.path.name}: {len(token_ids)} tokens of {options.text.name}, context {options.context}")
    results = []
    for is_reference, dtype in ((True, torch.float32), (False, fast_dtype)):
        model = load(files, is_reference=is_reference, dtype=dtype, device=device)
        cache_dtype = torch.int8 if options.kv_cache_dtype == "int8" and not is_reference else dtype
        value = perplexity(model, token_ids, context=options.context, dtype=cache_dtype, device=device)
        label = "reference" if is_reference else "fast"
        names = [str(each).removeprefix("torch.") for each in (dtype, cache_dtype)]
        print(f"{label:<10}{names[0]:<10}{names[1]:<10}{value:10.4f}")
        results.append(value)
    print(f"{'ratio':<30}{results[1] / results[0]:10.4f}")
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Perplexity of the fast mode beside float32.")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--text", type=Path, default=TEXT, help="UTF-8 text to predict")
    parser.add_argument("--num-tokens", type=int, help="use the first so many tokens; all if not given")
    parser.add_argument("--context", type=int, default=512, help="tokens in a run")
    parser.add_argument("--dtype", choices=["auto", "float32", "bfloat16"], default="auto")
    parser.add_argument("--kv-cache-dtype", choices=["auto", "int8"], default="auto", help="of the fast mode")
    parser.add_argument("--device", default="cpu")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
