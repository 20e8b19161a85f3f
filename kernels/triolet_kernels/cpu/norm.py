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
        self._plain = native.kernels("rms_norm")
        self._of_residual = native.kernels("rms_norm_of_float32")
        self._adding = native.kernels("add_rms_norm")
        self._columns = native.kernels("norm_columns")

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype | None = None) -> Tensor:
        dtype = dtype or x.dtype
        kernels = self._plain if x.dtype == dtype else self._of_residual
        kernel = kernels.get(dtype)
        if kernel is None or x.shape[-1] > _MAX_SIZE or x.dtype not in (dtype, torch.float32):
            return reference.rms_norm(x, weight, eps, dtype)
        output = torch.empty_like(x, dtype=dtype)
        self._run(kernel, x, (), weight, output, eps)
        return output

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        kernel = self._adding.get(x.dtype)
        if kernel is None or x.shape[-1] > _MAX_SIZE:
            return reference.add_rms_norm(x, residual, weight, eps)
        output = torch.empty_like(x)
        self._run(kernel, x, (residual.data_ptr(),), weight, output, eps)
        return output

    def norm_columns(self, x: Tensor, first: int, weight: Tensor, eps: float) -> None:
        kernel, size = self._columns.get(x.dtype), weight.shape[0]
        if kernel is None or size > _MAX_SIZE:
            reference.norm_columns(x, first, weight, eps)
            return
        factors = weight.float()
        kernel(x.data_ptr(), factors.data_ptr(), *x.shape, first, size, eps, *self._team)

    def _run(
        self, kernel: Kernel, x: Tensor, residual: tuple[int, ...], weight: Tensor, output: Tensor, eps: float
    ) -> None:
        size = x.shape[-1]
        factors = weight.float()
        kernel(
            x.data_ptr(),
            *residual,
            factors.data_ptr(),
            output.data_ptr(),
            x.numel() // size,
            size,
            eps,
            *self._team,
        )
