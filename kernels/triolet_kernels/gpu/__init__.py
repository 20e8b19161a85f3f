"""The GPU implementation: Triton kernels, and the reference (torch on the device) where there is none.

Imported only for a device that is a GPU: importing Triton takes a second.
"""

from __future__ import annotations

import torch
from torch import Tensor

from triolet_kernels.gpu.activation import ActivationKernels
from triolet_kernels.gpu.launch import GpuDevice
from triolet_kernels.gpu.norm import NormKernels
from triolet_kernels.gpu.rows import RowKernels
from triolet_kernels.reference import ReferenceOps

__all__ = ["GpuOps"]


class GpuOps(ReferenceOps):
    """Every operation of :class:`triolet_kernels.ops.Ops` on one GPU.

    None of them waits for the device, and what they allocate depends on shapes and on the plain integers of a
    batch alone, so all can be captured in a graph.
    """

    uses_torch_threads = False

    def __init__(self, device: GpuDevice) -> None:
        self.name = f"gpu-{device.configurations.architecture}"
        self._rows = RowKernels(device)
        self._norm = NormKernels(device)
        self._activation = ActivationKernels(device)

    def take_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        return self._rows.take_rows(x, rows)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype | None = None) -> Tensor:
        return self._norm.rms_norm(x, weight, eps, dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self._norm.add_rms_norm(x, residual, weight, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return self._activation.silu_mul(gate_up)

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        return self._activation.gelu_mul(gate_up)
