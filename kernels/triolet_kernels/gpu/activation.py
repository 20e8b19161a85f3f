"""Gated activations: one program for a part of a row."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from triolet_kernels.gpu.launch import GpuDevice

__all__ = ["ActivationKernels"]


class ActivationKernels:
    """The gated activations on one device. The grid depends on the shape of the input alone."""

    def __init__(self, device: GpuDevice) -> None:
        self._device = device
        configuration = device.configurations.find("gated_activation", "any size")
        assert configuration is not None
        self._configuration = configuration

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return self._multiply(gate_up, is_gelu=False)

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        return self._multiply(gate_up, is_gelu=True)

    def _multiply(self, gate_up: Tensor, *, is_gelu: bool) -> Tensor:
        num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        output = gate_up.new_empty(num_rows, size)
        grid = (num_rows, triton.cdiv(size, self._configuration.constants["BLOCK"]))
        self._device.launch(
            _gated_activation, grid, self._configuration, gate_up, output, SIZE=size, IS_GELU=is_gelu
        )
        return output


@triton.jit
def _gated_activation(gate_up, output, SIZE: tl.constexpr, IS_GELU: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64)
    gates = gate_up + row * (2 * SIZE) + columns
    gate = tl.load(gates, mask=columns < SIZE, other=0.0).to(tl.float32)
    up = tl.load(gates + SIZE, mask=columns < SIZE, other=0.0).to(tl.float32)
    inner = gate
    if IS_GELU:
        # 0.5 (1 + tanh(u)) = sigmoid(2 u), with u = sqrt(2 / pi) (x + 0.044715 x^3)
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    product = gate * tl.sigmoid(inner) * up
    tl.store(output + row * SIZE + columns, product.to(output.dtype.element_ty), mask=columns < SIZE)
