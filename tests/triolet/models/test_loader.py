"""What loading checks, in which order it reads, and what it hands over."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

import pytest
import torch
from torch import Tensor

from triolet.errors import UnknownArchitectureError, WeightsError
from triolet.models.config import ModelConfig, RopeConfig
from triolet.models.loader import load_model
from triolet.models.registry import MODEL_TYPES
from triolet_kernels.ops import Ops, select_ops
from triolet_kernels.quant import NotFiniteError

CONFIG = ModelConfig(
    architecture="qwen2",
    vocab_size=11,
    hidden_size=8,
    intermediate_size=12,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    rms_norm_eps=1e-6,
    max_position_embeddings=32,
    rope=RopeConfig(theta=1e4, dim=4),
    windows=(None, None),
    attention_scale=0.5,
    has_attention_bias=True,
)


class MemoryCheckpoint:
    """A checkpoint that holds its tensors and notes which are read."""

    def __init__(self, config: ModelConfig, tensors: dict[str, Tensor]) -> None:
        self.config = config
        self.tensors = tensors
        self.reads: list[str] = []

    @property
    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}

    def tensor(self, name: str) -> Tensor:
        self.reads.append(name)
        return self.tensors[name]

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def make_checkpoint(config: ModelConfig = CONFIG) -> MemoryCheckpoint:
    shapes = MODEL_TYPES[config.architecture].shapes(config)
    return MemoryCheckpoint(config, {name: torch.ones(shape) for name, shape in shapes.items()})


@pytest.fixture
def ops() -> Ops:
    return select_ops(torch.device("cpu"), is_reference=True)


def load(checkpoint: MemoryCheckpoint, ops: Ops, **options: Any) -> Any:
    return load_model(checkpoint, ops, dtype=torch.float32, device=torch.device("cpu"), **options)


@pytest.mark.parametrize("architecture", MODEL_TYPES)
@pytest.mark.parametrize("is_embedding_tied", [False, True])
def test_reads_every_tensor(ops: Ops, architecture: str, is_embedding_tied: bool) -> None:
    config = dataclasses.replace(
        CONFIG,
        architecture=architecture,
        has_qk_norm=architecture in ("qwen3", "gemma3"),
        has_attention_bias=architecture == "qwen2",
        is_embedding_tied=is_embedding_tied,
    )
    checkpoint = make_checkpoint(config)
    assert load(checkpoint, ops).config is config
    assert set(checkpoint.reads) == set(checkpoint.tensors)
    assert len(checkpoint.reads) == len(checkpoint.tensors) + is_embedding_tied


def test_names_all_missing_tensors_and_reads_nothing(ops: Ops) -> None:
    checkpoint = make_checkpoint()
    del checkpoint.tensors["lm_head.weight"], checkpoint.tensors["model.layers.1.self_attn.k_proj.bias"]
    with pytest.raises(WeightsError, match="2 missing") as caught:
        load(checkpoint, ops)
    assert "lm_head.weight (11, 8)" in caught.value.message
    assert "model.layers.1.self_attn.k_proj.bias (4,)" in caught.value.message
    assert checkpoint.reads == []


def test_names_unexpected_tensors(ops: Ops) -> None:
    checkpoint = make_checkpoint()
    checkpoint.tensors["model.layers.2.input_layernorm.weight"] = torch.ones(8)
    with pytest.raises(WeightsError, match=r"1 unexpected: model\.layers\.2\.input_layernorm\.weight \(8,\)"):
        load(checkpoint, ops)


def test_names_wrongly_shaped_tensors_with_both_shapes(ops: Ops) -> None:
    checkpoint = make_checkpoint()
    checkpoint.tensors["model.norm.weight"] = torch.ones(9)
    with pytest.raises(WeightsError, match=r"model\.norm\.weight is \(9,\), expected \(8,\)"):
        load(checkpoint, ops)


def test_names_several_problems_at_once_and_keeps_the_message_short(ops: Ops) -> None:
    checkpoint = make_checkpoint()
    checkpoint.tensors = {f"other.{name}": tensor for name, tensor in checkpoint.tensors.items()}
    with pytest.raises(WeightsError, match=r"missing.*unexpected") as caught:
        load(checkpoint, ops)
    assert f"and {len(checkpoint.tensors) - 8} more" in caught.value.message
    assert len(caught.value.message) < 1500


def test_an_unknown_architecture_lists_the_known_ones(ops: Ops) -> None:
    checkpoint = make_checkpoint()
    checkpoint.config = dataclasses.replace(CONFIG, architecture="mamba")
    with pytest.raises(UnknownArchitectureError, match=r"'mamba'.*llama, mistral, qwen2, qwen3, gemma3"):
        load(checkpoint, ops)


class DamageFound:
    """Operations that find the weights of the n-th layer damaged."""

    def __init__(self, ops: Ops, num_sound: int) -> None:
        self._ops = ops
        self._num_sound = num_sound

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def pack_linear(self, *arguments: Any) -> Any:
        self._num_sound -= 1
        if self._num_sound < 0:
            raise NotFiniteError("a scale is infinite")
        return self._ops.pack_linear(*arguments)


def test_names_damaged_tensors_and_says_what_to_do(ops: Ops) -> None:
    names = r"model\.layers\.0\.mlp\.gate_proj, model\.layers\.0\.mlp\.up_proj"
    with pytest.raises(WeightsError, match=rf"{names} cannot be used: a scale is infinite.*fetch it again"):
        load(make_checkpoint(), DamageFound(ops, 2))


class PackingNotes:
    """Operations that note how many tensors had been read when each weight was packed."""

    def __init__(self, ops: Ops, reads: list[str]) -> None:
        self._ops = ops
        self._reads = reads
        self.unpacked: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def pack_linear(self, *arguments: Any) -> Any:
        self.unpacked.append(len(self._reads))
        return self._ops.pack_linear(*arguments)


def steps(values: list[int]) -> Iterator[int]:
    return (after - before for before, after in pairwise([0, *values]))


def test_packs_each_weight_before_reading_on(ops: Ops) -> None:
    checkpoint = make_checkpoint()
    notes = PackingNotes(ops, checkpoint.reads)
    load(checkpoint, notes)
    # Between two packings at most: embedding, norm, and three projections with their biases.
    assert max(steps(notes.unpacked)) <= 8


class VocabularyNotes:
    """Operations that note the weights that are to make logits."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops
        self.shapes: list[tuple[int, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def pack_vocabulary(self, weight: Any, *arguments: Any) -> Any:
        self.shapes.append(tuple(weight.shape))
        return self._ops.pack_vocabulary(weight, *arguments)


def test_the_weight_that_makes_logits_is_packed_as_such(ops: Ops) -> None:
    checkpoint, notes = make_checkpoint(), VocabularyNotes(ops)
    load(checkpoint, notes)
    assert notes.shapes == [(checkpoint.config.vocab_size, checkpoint.config.hidden_size)]
