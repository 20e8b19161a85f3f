"""``open_checkpoint``: the weights of a model by their Hugging Face names, whatever the files are.

This module knows neither how files are laid out (the readers do) nor what a model computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from triolet.models.config import ModelConfig
from triolet.models.source import ModelFiles

if TYPE_CHECKING:
    from torch import Tensor

    from triolet_kernels.quant import QuantTensor

__all__ = ["Checkpoint", "open_checkpoint"]


class Checkpoint(Protocol):
    """An open model. Closing it, or leaving its context, is right once the weights have been taken.

    ``tensor_shapes``: the shape of each tensor by its Hugging Face name
    (``model.layers.0.self_attn.q_proj.weight``), linear weights as ``(out, in)``. Tensors that carry nothing
    of their own are left out: rotary tables kept by old files, and ``lm_head.weight`` where the embedding is
    tied. A GGUF tensor without a Hugging Face name keeps its own.
    """

    @property
    def config(self) -> ModelConfig: ...

    @property
    def tensor_shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    def tensor(self, name: str) -> Tensor | QuantTensor:
        """One tensor: float32, float16 or bfloat16, or quantised as it is in the file.

        Rows of queries and keys are in the half-split order of rotation that Hugging Face files have, for
        every format. Norm weights of Gemma are plain multipliers for every format (Hugging Face files hold
        the weight less one, which is added here, in float32). Data that need no such change are a view of
        the mapped file, stay valid after :meth:`close`, and are not to be written to.

        Raises :class:`WeightsError` for a name that is not in ``tensor_shapes``.
        """
        ...

    def close(self) -> None:
        """Let go of the files. May be called twice."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


def open_checkpoint(files: ModelFiles) -> Checkpoint:
    """Open the model's files and check them.

    Raises :class:`ModelFileError` or :class:`UnknownArchitectureError`.
    """
    # Imported here so that naming a model, and reading its config, does not load torch.
    if files.kind == "gguf":
        from triolet.models.gguf_checkpoint import GGUFCheckpoint

        return GGUFCheckpoint(files.path)
    from triolet.models.safetensors_checkpoint import SafetensorsCheckpoint

    return SafetensorsCheckpoint(files.path, files.weights)
