"""``GGUFCheckpoint``: the tensors of a GGUF file by their Hugging Face names.

llama.cpp's converter reorders the rows of queries and keys of Llama models, so that rotation pairs
neighbours; here they are put back into the half-split order, quantised or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from triolet.errors import ModelFileError, WeightsError
from triolet.models.config import ModelConfig
from triolet.models.config_gguf import from_gguf
from triolet.models.expert_parts import Part, parts_of
from triolet.models.gguf import GGUFFile, GGUFTensor
from triolet.models.gguf_names import huggingface_name
from triolet_kernels.quant import QuantTensor

__all__ = ["GGUFCheckpoint"]

_FREQUENCY_FACTORS = "rope_freqs.weight"
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class GGUFCheckpoint:
    """A :class:`~triolet.models.checkpoint.Checkpoint` over one GGUF file, read as its pages are touched."""

    def __init__(self, path: Path) -> None:
        self._file = GGUFFile(path)
        shapes = {name: tensor.shape for name, tensor in self._file.tensors.items()}
        self.config: ModelConfig = from_gguf(
            self._file.metadata, shapes, frequency_factors=self._frequency_factors(), source=str(path)
        )
        self._tensors = self._named_tensors()
        self.tensor_shapes: Mapping[str, tuple[int, ...]] = {
            name: part.shape for name, (_, part) in self._tensors.items()
        }

    def tensor(self, name: str) -> Tensor | QuantTensor:
        """See :class:`~triolet.models.checkpoint.Checkpoint`."""
        if name not in self._tensors:
            raise WeightsError(f"{self._file.path}: there is no tensor {name}")
        tensor, part = self._tensors[name]
        value = part.of(self._plain(tensor)) if tensor.kind.name in _DTYPES else self._quantised(tensor, part)
        num_heads = self._num_rotated_heads(name)
        return value if num_heads is None else self._half_split(value, tensor, num_heads)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _named_tensors(self) -> dict[str, tuple[GGUFTensor, Part]]:
        """Where each weight is."""
        named: dict[str, tuple[GGUFTensor, Part]] = {}
        for tensor in self._file.tensors.values():
            if tensor.name == _FREQUENCY_FACTORS:
                continue
            stored = huggingface_name(tensor.name, self.config.architecture)
            for name, part in parts_of(stored, tensor.shape, self.config.num_experts).items():
                if name in named:
                    raise ModelFileError(
                        f"{self._file.path}: the tensors {named[name][0].name} and {tensor.name} "
                        f"are both {name}"
                    )
                named[name] = tensor, part
        return named

    def _frequency_factors(self) -> tuple[float, ...] | None:
        tensor = self._file.tensors.get(_FREQUENCY_FACTORS)
        if tensor is None:
            return None
        where = f"{self._file.path}: the tensor {_FREQUENCY_FACTORS}"
        if tensor.kind.name != "F32" or len(tensor.shape) != 1 or tensor.shape[0] > 4096:
            raise ModelFileError(f"{where} must be a short vector of F32")
        factors = tuple(float(factor) for factor in self._plain(tensor).tolist())
        if not all(0 < factor < float("inf") for factor in factors):
            raise ModelFileError(f"{where} must hold positive numbers")
        return factors

    def _plain(self, tensor: GGUFTensor) -> Tensor:
        return self._bytes(tensor).view(_DTYPES[tensor.kind.name]).view(tensor.shape)

    def _quantised(self, tensor: GGUFTensor, part: Part) -> QuantTensor:
        if len(part.shape) != 2:
            raise WeightsError(
                f"{self._file.path}: the tensor {tensor.name} is {tensor.kind.name} with shape "
                f"{tensor.shape}; only matrices may be quantised"
            )
        num_rows, num_columns = part.shape
        data = part.of(self._bytes(tensor).view(*tensor.shape[:-1], -1))
        return QuantTensor(data, tensor.kind.name, (num_rows, num_columns))

    def _bytes(self, tensor: GGUFTensor) -> Tensor:
        # Through NumPy, which holds on to the mapping as long as the view lives; torch.frombuffer does not.
        return torch.from_numpy(self._file.view(tensor))

    def _num_rotated_heads(self, name: str) -> int | None:
        """How many heads of rows to reorder; None for tensors that are not queries or keys of Llama."""
        if self.config.architecture != "llama":
            return None
        if ".self_attn.q_proj." in name:
            return self.config.num_heads
        return self.config.num_kv_heads if ".self_attn.k_proj." in name else None

    def _half_split(
        self, value: Tensor | QuantTensor, tensor: GGUFTensor, num_heads: int
    ) -> Tensor | QuantTensor:
        """Row ``2 i + h`` of each head goes to row ``h * D / 2 + i``."""
        num_rows, head_dim = tensor.shape[0], self.config.head_dim
        if num_rows != num_heads * head_dim:
            raise WeightsError(
                f"{self._file.path}: the tensor {tensor.name} has {num_rows} rows, "
                f"not {num_heads} heads of {head_dim}"
            )
        order = torch.arange(num_rows).view(num_heads, head_dim // 2, 2).transpose(1, 2).reshape(-1)
        return value.rows(order) if isinstance(value, QuantTensor) else value[order]
