"""Linear layers in 8 bits: weights have a scale for each output, inputs get one for each row on the way.

``int8`` products are summed in int32, exactly: a row's result is the same in any company. ``fp8`` is e4m3
("FP8 Formats for Deep Learning", Micikevicius et al. 2022), summed in float32, for GPUs that multiply it.
Must not know what the weights belong to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from triolet_kernels.gpu.launch import GpuDevice

__all__ = ["PackedScaled", "ScaledLinearKernels", "Scheme"]

Scheme = Literal["int8", "fp8"]

_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
_LARGEST = {"int8": 127.0, "fp8": 448.0}


@dataclass(frozen=True, slots=True, eq=False)
class PackedScaled:
    """``weight`` (out, in) int8 or float8_e4m3fn, ``scales`` (out,) and ``bias`` (out,) float32."""

    weight: Tensor
    scales: Tensor
    bias: Tensor | None
    scheme: Scheme


class ScaledLinearKernels:
    """The layers on one device."""

    def __init__(self, device: GpuDevice) -> None:
        self._device = device

    def has(self, scheme: Scheme) -> bool:
        """Whether this device multiplies numbers of this kind."""
        return self._device.configurations.find("scaled_linear", scheme) is not None

    def scheme_named(self, name: str) -> Scheme:
        """The scheme of that name. Raises ValueError where there is none on this device."""
        schemes: tuple[Scheme, ...] = ("int8", "fp8")
        possible = [scheme for scheme in schemes if self.has(scheme)]
        for scheme in possible:
            if scheme == name:
                return scheme
        raise ValueError(
            f"TRIOLET_GPU_LINEAR is {name!r}; on {self._device.configurations.architecture} it may be "
            f"{' or '.join(possible)}, or be left out"
        )

    def pack(self, weight: Tensor, bias: Tensor | None, scheme: Scheme) -> PackedScaled:
        """Round ``weight (out, in)`` to 8 bits. The device has to have the scheme."""
        assert self.has(scheme), f"{scheme} on {self._device.configurations.architecture}"
        values = weight.to(self._device.torch_device, torch.float32)
        scales = (values.abs().amax(dim=1) / _LARGEST[scheme]).clamp_min(torch.finfo(torch.float32).tiny)
        values = values / scales[:, None]
        rounded = (values.round() if scheme == "int8" else values).to(_DTYPES[scheme])
        kept_bias = None if bias is None else bias.to(self._device.torch_device, torch.float32)
        return PackedScaled(rounded, scales, kept_bias, scheme)

    def linear(self, x: Tensor, packed: PackedScaled) -> Tensor:
        num_rows, (num_outputs, width) = x.shape[0], packed.weight.shape
        rows = torch.empty(x.shape, dtype=packed.weight.dtype, device=x.device)
        row_scales = x.new_empty(num_rows, dtype=torch.float32)
        self._device.launch(
            _round_rows,
            (num_rows,),
            self._device.configurations.only("round_rows"),
            *(x, rows, row_scales, width),
            LARGEST=_LARGEST[packed.scheme],
            IS_WHOLE=packed.scheme == "int8",
        )
        configuration = self._device.configurations.find("scaled_linear", packed.scheme)
        assert configuration is not None, "the weight could be packed"
        tile, output = configuration.constants, x.new_empty(num_rows, num_outputs)
        self._device.launch(
            _scaled_linear,
            (triton.cdiv(num_rows, tile["BLOCK_M"]), triton.cdiv(num_outputs, tile["BLOCK_N"])),
            configuration,
            *(rows, row_scales, packed.weight, packed.scales, packed.bias, output),
            *(num_rows, num_outputs, width),
            IS_WHOLE=packed.scheme == "int8",
        )
        return output


@triton.jit
def _round_rows(x, output, scales, K, LARGEST: tl.constexpr, IS_WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64)
    largest = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, K, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        values = tl.load(x + index * K + columns, mask=columns < K, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(values))
    scale = tl.maximum(tl.max(largest, axis=0) / LARGEST, 1e-30)
    tl.store(scales + index, scale)
    for start in range(0, K, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        values = tl.load(x + index * K + columns, mask=columns < K, other=0.0).to(tl.float32) / scale
        values = tl.floor(values + 0.5) if IS_WHOLE else values
        tl.store(output + index * K + columns, values.to(output.dtype.element_ty), mask=columns < K)


@triton.jit(do_not_specialize=["num_rows"])  # compiled once, not for some batches again
def _scaled_linear(
    x, row_scales, weights, scales, bias, output, num_rows, N, K,
    IS_WHOLE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    row_ids = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    output_ids = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row, is_output = row_ids < num_rows, output_ids < N
    rows = tl.where(is_row, row_ids, 0).to(tl.int64)
    columns = tl.where(is_output, output_ids, 0).to(tl.int64)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32 if IS_WHOLE else tl.float32)
    for start in range(0, K, BLOCK_K):
        inputs = start + tl.arange(0, BLOCK_K)
        is_input = (inputs < K)[None, :]
        left = tl.load(x + rows[:, None] * K + inputs[None, :], mask=is_input, other=0.0)
        right = tl.load(weights + columns[:, None] * K + inputs[None, :], mask=is_input, other=0.0)
        total = tl.dot(left, tl.trans(right), total)
    result = total.to(tl.float32) * tl.load(row_scales + rows)[:, None] * tl.load(scales + columns)[None, :]
    if bias is not None:
        result += tl.load(bias + columns)[None, :]
    places = output + rows[:, None] * N + columns[None, :]
    tl.store(places, result.to(output.dtype.element_ty), mask=is_row[:, None] & is_output[None, :])
