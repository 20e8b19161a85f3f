"""Quantised weights made from given values."""

from __future__ import annotations

import numpy as np
import torch
from gguf import GGMLQuantizationType, quants
from torch import Tensor

from triolet_kernels.quant import QuantTensor


def quantize(values: Tensor, kind: str) -> QuantTensor:
    data = quants.quantize(values.numpy().astype(np.float32), GGMLQuantizationType[kind])
    return QuantTensor(torch.from_numpy(data), kind, (values.shape[0], values.shape[1]))
