"""Quantised weights made from given values, and random ones."""

from __future__ import annotations

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from torch import Tensor

from triolet_kernels.quant import QuantTensor

_HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
          "Q2_K": (80, 82), "Q3_K": (108,)}  # fmt: skip
"""Where in a block float16 numbers are, if not in its first two bytes alone."""


def quantize(values: Tensor, kind: str) -> QuantTensor:
    data = quants.quantize(values.numpy().astype(np.float32), GGMLQuantizationType[kind])
    return QuantTensor(torch.from_numpy(data), kind, (values.shape[0], values.shape[1]))


def random_blocks(kind: str, num_rows: int, num_columns: int) -> QuantTensor:
    """All bits random but for scales, which are ordinary numbers."""
    block_size, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    generator = np.random.default_rng(7)
    data = generator.integers(0, 256, (num_rows, num_columns // block_size, block_bytes), dtype=np.uint8)
    for start in _HALVES.get(kind, (0,)):
        scales = generator.uniform(0.01, 0.1, data.shape[:2]).astype(np.float16)
        data[..., start : start + 2] = scales[..., None].view(np.uint8)
    return QuantTensor(torch.from_numpy(data.reshape(num_rows, -1)), kind, (num_rows, num_columns))
