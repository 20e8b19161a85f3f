"""Models with random weights, of sizes and formats that no model at hand has, as GGUF files.

    python -m bench.random_model llama-1b-int4 --output llama-1b-int4.gguf

Any engine that reads GGUF runs them as fast as real ones; what they write means nothing. The tokeniser, and
with it the size of the vocabulary, is that of another GGUF file. Weights are the same in every run.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from triolet.args import DEFAULT_MODEL
from triolet.models.gguf import GGUFFile
from triolet.models.source import resolve_model

__all__ = ["RANDOM_MODELS", "Layout", "main", "write_random_model"]

_CONTEXT = 8192
_SPREAD = 0.02
"""The standard deviation of weights, about: small enough for activations to stay ordinary numbers."""

_CODES_SPREAD = {"Q4_0": 4.6, "Q8_0": 74.0}
"""The standard deviation of random codes."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A Llama whose output projection is the embedding table, with a format for that and one for the rest."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    kind: str
    vocabulary_kind: str

    def tensors(self, vocab_size: int) -> Iterator[tuple[str, tuple[int, ...], str]]:
        """Name, shape and format of each."""
        hidden, inner = self.hidden_size, self.intermediate_size
        keys = hidden // self.num_heads * self.num_kv_heads
        yield "token_embd.weight", (vocab_size, hidden), self.vocabulary_kind
        yield "output_norm.weight", (hidden,), "F32"
        for layer in range(self.num_layers):
            for name in ("attn_norm", "ffn_norm"):
                yield f"blk.{layer}.{name}.weight", (hidden,), "F32"
            for name, shape in (
                ("attn_q", (hidden, hidden)),
                ("attn_k", (keys, hidden)),
                ("attn_v", (keys, hidden)),
                ("attn_output", (hidden, hidden)),
                ("ffn_gate", (inner, hidden)),
                ("ffn_up", (inner, hidden)),
                ("ffn_down", (hidden, inner)),
            ):
                yield f"blk.{layer}.{name}.weight", shape, self.kind


_LLAMA_1B = Layout(16, 2048, 8192, 32, 8, "Q4_0", "Q8_0")
_SMOLLM2 = Layout(30, 576, 1536, 9, 3, "F32", "F32")

RANDOM_MODELS: dict[str, Layout] = {
    "llama-1b-int4": _LLAMA_1B,
    "llama-1b-int8": replace(_LLAMA_1B, kind="Q8_0"),
    "smollm2-135m-bfloat16": replace(_SMOLLM2, kind="BF16", vocabulary_kind="BF16"),
    "smollm2-135m-float32": _SMOLLM2,
}
"""By name. With a vocabulary of 49,152 the first two have 1.07 billion weights."""


def write_random_model(layout: Layout, tokenizer: Path, path: Path) -> None:
    """Write a model to ``path``, tensor by tensor, with the tokeniser of the GGUF file ``tokenizer``."""
    writer = gguf.GGUFWriter(path, "llama")
    with GGUFFile(tokenizer) as source:
        for key, value in source.metadata.items():
            if key.startswith("tokenizer."):
                _add(writer, key, value)
        vocab_size = len(source.metadata["tokenizer.ggml.tokens"])
    _add_sizes(writer, layout)
    tensors = list(layout.tensors(vocab_size))
    for name, shape, kind in tensors:
        number = gguf.GGMLQuantizationType[kind]
        values, size = gguf.GGML_QUANT_SIZES[number]
        in_bytes = (*shape[:-1], shape[-1] // values * size)
        writer.add_tensor_info(name, in_bytes, np.dtype(np.uint8), int(np.prod(in_bytes)), number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    generator = np.random.default_rng(0)
    for _, shape, kind in tensors:
        writer.write_tensor_data(_random_tensor(generator, shape, kind))
    writer.close()


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, list(value))


def _add_sizes(writer: gguf.GGUFWriter, layout: Layout) -> None:
    writer.add_context_length(_CONTEXT)
    writer.add_block_count(layout.num_layers)
    writer.add_embedding_length(layout.hidden_size)
    writer.add_feed_forward_length(layout.intermediate_size)
    writer.add_head_count(layout.num_heads)
    writer.add_head_count_kv(layout.num_kv_heads)
    writer.add_rope_dimension_count(layout.hidden_size // layout.num_heads)
    writer.add_rope_freq_base(1e5)
    writer.add_layer_norm_rms_eps(1e-5)


def _random_tensor(generator: np.random.Generator, shape: tuple[int, ...], kind: str) -> NDArray[np.uint8]:
    """The bytes of a tensor; norms are ones."""
    if len(shape) == 1:
        return np.ones(shape, dtype=np.float32).view(np.uint8)
    if kind in ("F32", "BF16"):
        values = generator.standard_normal(shape, dtype=np.float32) * np.float32(_SPREAD)
        as_bytes = values.view(np.uint8)
        return as_bytes if kind == "F32" else np.ascontiguousarray(_upper_halves(values))
    values_each, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    num_blocks = int(np.prod(shape)) // values_each
    blocks = (
        np.frombuffer(generator.bytes(num_blocks * size), dtype=np.uint8).reshape(num_blocks, size).copy()
    )
    blocks[:, :2] = np.array([_SPREAD / _CODES_SPREAD[kind]], dtype=np.float16).view(np.uint8)
    return blocks.reshape(shape[0], -1)


def _upper_halves(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """float32 cut to bfloat16."""
    return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.random_model", description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=list(RANDOM_MODELS))
    parser.add_argument("--output", type=Path, required=True, help="the GGUF file to write")
    parser.add_argument("--tokenizer", default=DEFAULT_MODEL, help="a model in a GGUF file that has one")
    options = parser.parse_args(argv)
    tokenizer = resolve_model(options.tokenizer).path
    write_random_model(RANDOM_MODELS[options.name], tokenizer, options.output)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
