"""Shapes of models whose kernels are measured: layers, weights and their formats, heads.

Knows nothing of how kernels are called.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import gguf

__all__ = ["MODELS", "LinearShape", "ModelShapes"]


@dataclass(frozen=True, slots=True)
class LinearShape:
    """A weight of ``height`` outputs and ``width`` inputs, ``count`` times in a model.

    ``kind``: a GGUF block format, or ``dense``.
    """

    name: str
    width: int
    height: int
    kind: str
    count: int

    @property
    def num_values(self) -> int:
        return self.width * self.height * self.count

    def num_bytes(self, dense_size: int) -> int:
        """What it takes in a file, with so many bytes to a dense value."""
        if self.kind == "dense":
            return self.num_values * dense_size
        values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[self.kind]]
        return self.num_values // values * size


@dataclass(frozen=True, slots=True)
class ModelShapes:
    """What the kernels of a model are asked for."""

    name: str
    num_layers: int
    linears: tuple[LinearShape, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int

    def num_bytes(self, dense_size: int) -> int:
        return sum(shape.num_bytes(dense_size) for shape in self.linears)

    def as_dense(self, name: str) -> ModelShapes:
        """The same model with all weights in the number format of its inputs."""
        return replace(self, name=name, linears=tuple(replace(shape, kind="dense") for shape in self.linears))


_SMOLLM2 = ModelShapes(
    "smollm2-135m-q4_1",
    30,
    (
        LinearShape("qkv", 576, 960, "Q4_1", 30),
        LinearShape("output", 576, 576, "Q4_1", 30),
        LinearShape("gate_up", 576, 3072, "Q4_1", 30),
        LinearShape("down", 1536, 576, "Q4_1", 30),
        LinearShape("logits", 576, 49152, "Q8_0", 1),
    ),
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
)

_GEMMA3 = ModelShapes(
    "gemma-3-270m-q4_k_m",
    18,
    (
        LinearShape("qkv", 640, 1536, "Q5_0", 18),
        LinearShape("output", 1024, 640, "Q4_K", 18),
        LinearShape("gate_up", 640, 4096, "Q5_0", 18),
        LinearShape("down", 2048, 640, "Q4_K", 9),
        LinearShape("down", 2048, 640, "Q6_K", 9),
        LinearShape("logits", 640, 262144, "Q8_0", 1),
    ),
    num_heads=4,
    num_kv_heads=1,
    head_dim=256,
)


def _llama_1b(kind: str) -> ModelShapes:
    return ModelShapes(
        f"llama-1b-{kind.lower()}",
        16,
        (
            LinearShape("qkv", 2048, 3072, kind, 16),
            LinearShape("output", 2048, 2048, kind, 16),
            LinearShape("gate_up", 2048, 16384, kind, 16),
            LinearShape("down", 8192, 2048, kind, 16),
            LinearShape("logits", 2048, 128256, "Q8_0", 1),
        ),
        num_heads=32,
        num_kv_heads=8,
        head_dim=64,
    )


MODELS = {
    model.name: model
    for model in (
        _SMOLLM2,
        _SMOLLM2.as_dense("smollm2-135m"),
        _GEMMA3,
        _llama_1b("Q4_0"),
        _llama_1b("Q8_0"),
    )
}
