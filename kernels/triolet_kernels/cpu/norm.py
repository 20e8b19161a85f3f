"""RMS norms through the compiled kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from triolet_kernels.cpu.loader import Kernel, NativeLibrary
from triolet_kernels.reference import norm as reference

__all__ = ["NormKernels"]

_MAX_SIZE = 16384


class NormKernels:
    """The norm kernels of one library; what they do not take goes to the reference."""

    def __init__(self, native: NativeLibrary) -> None:
        self._team = native.team
        self._kernels = native.kernels("rms_norm")

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        kernel = self._kernels.get(x.dtype)
        if kernel is None or x.shape[-1] > _MAX_SIZE:
            return reference.rms_norm(x, weight, eps)
        return self._run(kernel, x, None, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        kernel = self._kernels.get(x.dtype)
        if kernel is None or x.shape[-1] > _MAX_SIZE:
            return reference.add_rms_norm(x, residual, weight, eps)
        return self._run(kernel, x, residual.data_ptr(), weight, eps)

    def _run(self, kernel: Kernel, x: Tensor, residual: int | None, weight: Tensor, eps: float) -> Tensor:
        output = torch.empty_like(x)
        size = x.shape[-1]
        factors = weight.float()
        kernel(
            x.data_ptr(),
            residual,
            factors.data_ptr(),
            output.data_ptr(),
            x.numel() // size,
            size,
            eps,
            self._team,
            torch.get_num_threads(),
        )
        return output
