"""Gated activations through the compiled kernels."""

from __future__ import annotations

from torch import Tensor

from triolet_kernels.cpu.loader import Kernel, NativeLibrary
from triolet_kernels.reference import activation as reference

__all__ = ["ActivationKernels"]


class ActivationKernels:
    """The activation kernels of one library; number formats they do not take go to the reference."""

    def __init__(self, native: NativeLibrary) -> None:
        self._team = native.team
        self._silu = native.kernels("silu_mul")
        self._gelu = native.kernels("gelu_mul")

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        kernel = self._silu.get(gate_up.dtype)
        return self._run(kernel, gate_up) if kernel else reference.silu_mul(gate_up)

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        kernel = self._gelu.get(gate_up.dtype)
        return self._run(kernel, gate_up) if kernel else reference.gelu_mul(gate_up)

    def _run(self, kernel: Kernel, gate_up: Tensor) -> Tensor:
        num_rows, width = gate_up.shape
        output = gate_up.new_empty(num_rows, width // 2)
        kernel(
            gate_up.data_ptr(),
            output.data_ptr(),
            num_rows,
            width // 2,
            *self._team,
        )
        return output
