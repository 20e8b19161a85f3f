"""``open_checkpoint`` picks the reader by the kind of the files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from triolet.errors import ModelFileError
from triolet.models.checkpoint import open_checkpoint
from triolet.models.gguf_checkpoint import GGUFCheckpoint
from triolet.models.safetensors_checkpoint import SafetensorsCheckpoint
from triolet.models.source import local_files

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 4, "hidden_size": 8, "intermediate_size": 8,
    "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 16,
}  # fmt: skip


def test_a_gguf_file(llama_gguf: Path) -> None:
    with open_checkpoint(local_files(llama_gguf)) as checkpoint:
        assert isinstance(checkpoint, GGUFCheckpoint)
        assert checkpoint.config.architecture == "llama"


def test_a_hugging_face_directory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    save_file({"model.norm.weight": torch.ones(8)}, tmp_path / "model.safetensors")
    with open_checkpoint(local_files(tmp_path)) as checkpoint:
        assert isinstance(checkpoint, SafetensorsCheckpoint)
        assert checkpoint.config.architecture == "llama"
        assert checkpoint.tensor_shapes == {"model.norm.weight": (8,)}


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(ModelFileError, match="a GGUF file starts with"):
        open_checkpoint(local_files(path))
