"""Linear layers on a GPU.

Dense weights are multiplied by torch, that is cuBLAS or its like: nothing is faster. Its results for a row
depend on how many rows there are, as do those of the tiles that suit few rows or many; where that must not
be, everything goes through one kernel with one tile and one order of the sum. Quantised weights of the common
formats stay quantised; the others are dequantised. For many rows they are widened each time, and torch
multiplies: that is little beside the product, where each tile of rows would widen them again. Must not know
what the weights belong to.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from torch.nn import functional

from triolet_kernels.gpu.code_rows import CodeRows
from triolet_kernels.gpu.configurations import Configuration
from triolet_kernels.gpu.launch import GpuDevice
from triolet_kernels.gpu.linear_kernels import linear, quantized_row, sum_segments
from triolet_kernels.gpu.quantized_weight import (
    PackedCodes,
    constants_of,
    is_packable,
    pack_codes,
    tensors_of,
)
from triolet_kernels.quant import QuantTensor

__all__ = ["LinearKernels", "PackedLinear"]

MOST_SPLIT_ROWS = 64
"""With more rows there are tiles enough, and sums of segments would be long."""
MOST_TILED_ROWS = 256
"""With more rows a weight is widened once for all of them."""
MIN_SEGMENT_STEPS = 4
PROGRAMS_PER_MULTIPROCESSOR = 2
INVARIANT_CLASS = "up to 64 rows"


@dataclass(frozen=True, slots=True, eq=False)
class PackedLinear:
    """``weight`` (out, in), dense of the dtype of the inputs or in codes; ``bias`` (out,) or None: float32
    beside codes, else of the same dtype."""

    weight: Tensor | PackedCodes
    bias: Tensor | None


class LinearKernels:
    """The linear layers on one device."""

    def __init__(self, device: GpuDevice, *, is_batch_invariant: bool = False) -> None:
        """``is_batch_invariant``: a row's result is the same whatever is beside it, and slower."""
        self._device = device
        self._is_batch_invariant = is_batch_invariant
        self._codes = CodeRows(device)

    def pack_linear(
        self, weight: Tensor | QuantTensor, bias: Tensor | None, dtype: torch.dtype
    ) -> PackedLinear:
        """Raises NotFiniteError for scales of a quantised weight that are infinite or not numbers."""
        device = self._device.torch_device
        if isinstance(weight, QuantTensor) and is_packable(weight):
            return PackedLinear(pack_codes(weight, device), _moved(bias, torch.float32, device))
        dense = weight.dequantize() if isinstance(weight, QuantTensor) else weight
        kept_bias = torch.float32 if self._is_batch_invariant else dtype
        return PackedLinear(dense.to(device, dtype).contiguous(), _moved(bias, kept_bias, device))

    def linear(self, x: Tensor, packed: PackedLinear) -> Tensor:
        weight = packed.weight
        if isinstance(weight, Tensor) and not self._is_batch_invariant:
            return functional.linear(x, weight, packed.bias)
        num_rows, num_outputs = x.shape[0], weight.shape[0]
        if isinstance(weight, PackedCodes) and num_rows > MOST_TILED_ROWS and not self._is_batch_invariant:
            bias = None if packed.bias is None else packed.bias.to(x.dtype)
            return functional.linear(x, self._codes.decode(weight, x.dtype), bias)
        output = x.new_empty(num_rows, num_outputs)
        if num_rows == 1 and not self._is_batch_invariant:
            self._multiply_row(x, packed, output)
        else:
            self._multiply(x, packed, output)
        return output

    def _multiply_row(self, x: Tensor, packed: PackedLinear, output: Tensor) -> None:
        weight = packed.weight
        assert isinstance(weight, PackedCodes)
        configuration = self._device.configurations.only("quantized_row")
        (num_outputs, width), tile = weight.shape, configuration.constants
        segment = self._segment(num_outputs, width, configuration)
        num_segments = triton.cdiv(width, segment)
        parts = x.new_empty(num_segments, num_outputs, dtype=torch.float32)
        self._device.launch(
            quantized_row,
            (triton.cdiv(num_outputs, tile["BLOCK_N"]), num_segments),
            configuration,
            *(x, weight.words, weight.scales, weight.minimums, parts, num_outputs, width, segment),
            **constants_of(weight),
        )
        self._sum(parts, packed.bias, output)

    def _multiply(self, x: Tensor, packed: PackedLinear, output: Tensor) -> None:
        weight, num_rows = packed.weight, x.shape[0]
        num_outputs, width = weight.shape
        configuration = self._configuration(num_rows)
        tile = configuration.constants
        segment = self._segment(num_outputs, width, configuration)
        is_split = num_rows <= MOST_SPLIT_ROWS and segment < width
        if num_rows > MOST_SPLIT_ROWS and not self._is_batch_invariant:
            segment = width
        num_segments = triton.cdiv(width, segment) if is_split else 1
        target = output
        if is_split:
            target = x.new_empty(num_segments, num_rows, num_outputs, dtype=torch.float32)
        self._device.launch(
            linear,
            (triton.cdiv(num_rows, tile["BLOCK_M"]), triton.cdiv(num_outputs, tile["BLOCK_N"]), num_segments),
            configuration,
            *(x, *tensors_of(weight), packed.bias, target, num_rows, num_outputs, width, segment),
            IS_SPLIT=is_split,
            **constants_of(weight),
        )
        if is_split:
            self._sum(target, packed.bias, output)

    def _sum(self, parts: Tensor, bias: Tensor | None, output: Tensor) -> None:
        configuration = self._device.configurations.only("sum_segments")
        size = output.numel()
        grid = (triton.cdiv(size, configuration.constants["BLOCK"]),)
        arguments = (parts, bias, output, parts.shape[0], size, output.shape[1])
        self._device.launch(sum_segments, grid, configuration, *arguments)

    def _configuration(self, num_rows: int) -> Configuration:
        found = self._device.configurations.find("linear", self._shape_class(num_rows))
        assert found is not None, "every table has them"
        return found

    def _shape_class(self, num_rows: int) -> str:
        if self._is_batch_invariant:
            return INVARIANT_CLASS
        return next(f"up to {most} rows" for most in (16, 64, MOST_TILED_ROWS) if num_rows <= most)

    def _segment(self, num_outputs: int, width: int, configuration: Configuration) -> int:
        """Of how many inputs a segment is: few enough to keep the device busy if rows are few.

        It depends on the weight and the device alone, never on the rows.
        """
        tile = configuration.constants
        num_tiles = -(-num_outputs // tile["BLOCK_N"])
        wanted = -(-PROGRAMS_PER_MULTIPROCESSOR * self._device.num_multiprocessors // num_tiles)
        steps = -(-width // tile["BLOCK_K"])
        return tile["BLOCK_K"] * max(MIN_SEGMENT_STEPS, -(-steps // wanted))


def _moved(bias: Tensor | None, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    return None if bias is None else bias.to(device, dtype)
