"""Models with random weights can be read and run, by the names and formats that were asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from bench.random_model import RANDOM_MODELS, Layout, main, write_random_model
from tests.triolet.models.model_files import write_gguf
from tests.triolet.text.test_gguf_tokenizer import scored_metadata

from bench import random_model
from triolet.models.gguf import GGUFFile
from triolet.models.gguf_checkpoint import GGUFCheckpoint
from triolet.models.source import local_files
from triolet.text.tokenizer import load_tokenizer
from triolet_kernels.quant import QuantTensor


def tiny(kind: str, vocabulary_kind: str) -> Layout:
    return Layout(2, 64, 96, 4, 2, kind, vocabulary_kind)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "t.gguf"
    return write_gguf(path, metadata={**scored_metadata(), "general.name": "another"}, tensors={})


@pytest.mark.parametrize(
    ("kind", "vocabulary_kind"), [("Q4_0", "Q8_0"), ("Q8_0", "Q8_0"), ("BF16", "BF16"), ("F32", "F32")]
)
def test_weights_are_of_their_format_and_of_ordinary_size(
    kind: str, vocabulary_kind: str, tokenizer: Path, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    write_random_model(tiny(kind, vocabulary_kind), tokenizer, path)
    with GGUFFile(path) as file:
        kinds = {name: tensor.kind.name for name, tensor in file.tensors.items()}
    assert kinds["token_embd.weight"] == vocabulary_kind
    assert kinds["blk.1.ffn_down.weight"] == kind
    with GGUFCheckpoint(path) as checkpoint:
        config = checkpoint.config
        assert (config.num_layers, config.num_kv_heads, config.is_embedding_tied) == (2, 2, True)
        for name in checkpoint.tensor_shapes:
            tensor = checkpoint.tensor(name)
            values = tensor.dequantize() if isinstance(tensor, QuantTensor) else tensor.float()
            if values.dim() == 1:
                assert torch.equal(values, torch.ones(64))
            else:
                assert 0.015 < values.std() < 0.025, name
    same, here = (load_tokenizer(local_files(each)) for each in (tokenizer, path))
    assert here.encode("abc bca") == same.encode("abc bca")


def test_the_models_have_the_sizes_they_are_named_for() -> None:
    sizes: Mapping[str, float] = {
        name: sum(shape[0] * shape[-1] for _, shape, _ in layout.tensors(49152) if len(shape) == 2)
        for name, layout in RANDOM_MODELS.items()
    }
    assert sizes["llama-1b-int4"] == sizes["llama-1b-int8"] == pytest.approx(1.07e9, rel=0.01)
    assert sizes["smollm2-135m-float32"] == pytest.approx(134.5e6, rel=0.01)


def test_the_program_writes_the_file(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random_model, "RANDOM_MODELS", {"tiny": tiny("Q4_0", "Q8_0")})
    first, second = tmp_path / "1.gguf", tmp_path / "2.gguf"
    for path in (first, second):
        assert main(["tiny", "--tokenizer", str(tokenizer), "--output", str(path)]) == 0
    assert first.read_bytes() == second.read_bytes()
