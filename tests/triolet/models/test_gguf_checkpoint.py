"""GGUF checkpoints against Hugging Face models written the way llama.cpp's converter does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tests.triolet.models.model_files import LLAMA_METADATA, TensorData, equal, llama_tensors, write_gguf
from transformers import AutoConfig, AutoModelForCausalLM

from triolet.errors import ModelFileError, WeightsError
from triolet.models.gguf_checkpoint import GGUFCheckpoint
from triolet_kernels.quant import QuantTensor

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
}
NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 2, 4, 2, 16


def random_state(model_type: str) -> dict[str, torch.Tensor]:
    config = AutoConfig.for_model(
        model_type, num_hidden_layers=NUM_LAYERS, num_attention_heads=NUM_HEADS, vocab_size=100,
        num_key_value_heads=NUM_KV_HEADS, head_dim=HEAD_DIM, hidden_size=64, intermediate_size=96,
        tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    return {name: torch.randn_like(value) for name, value in model.state_dict().items()}


def interleaved(weight: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """The order of rows that llama.cpp gives queries and keys of Llama."""
    halves = weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def converted(model_type: str, state: dict[str, torch.Tensor]) -> dict[str, np.ndarray[Any, Any]]:
    names = gguf.get_tensor_name_map(ARCHITECTURES[model_type], NUM_LAYERS)
    tensors = {}
    for name, value in state.items():
        array = value.numpy()
        if model_type == "llama" and "q_proj" in name:
            array = interleaved(array, NUM_HEADS)
        if model_type == "llama" and "k_proj" in name:
            array = interleaved(array, NUM_KV_HEADS)
        if model_type == "gemma3_text" and name.endswith("norm.weight"):
            array = array + 1
        tensors[str(names.get_name(name, try_suffixes=(".weight", ".bias")))] = array
    return tensors


def metadata_of(architecture: str) -> dict[str, Any]:
    sizes = {
        "context_length": 128, "embedding_length": 64, "feed_forward_length": 96, "block_count": NUM_LAYERS,
        "attention.head_count": NUM_HEADS, "attention.head_count_kv": NUM_KV_HEADS,
        "attention.key_length": HEAD_DIM, "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window": 32,
    }  # fmt: skip
    return {f"{architecture}.{name}": value for name, value in sizes.items()}


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_tensors_are_those_of_the_hugging_face_model(tmp_path: Path, model_type: str) -> None:
    state = random_state(model_type)
    architecture = model_type.removesuffix("_text")
    path = write_gguf(
        tmp_path / "m.gguf", architecture, metadata_of(architecture), converted(model_type, state)
    )
    with GGUFCheckpoint(path) as checkpoint:
        assert set(checkpoint.tensor_shapes) == set(state)
        for name, value in state.items():
            is_gemma_norm = architecture == "gemma3" and name.endswith("norm.weight")
            assert checkpoint.tensor_shapes[name] == tuple(value.shape)
            assert equal(checkpoint.tensor(name), value + 1 if is_gemma_norm else value), name


def test_quantised_rows_are_put_back_in_order(tmp_path: Path) -> None:
    tensors: dict[str, Any] = dict(llama_tensors())
    quantised = gguf.quants.quantize(tensors["blk.0.attn_k.weight"], gguf.GGMLQuantizationType.Q8_0)
    expected = torch.from_numpy(gguf.quants.dequantize(quantised, gguf.GGMLQuantizationType.Q8_0))
    num_kv_heads = LLAMA_METADATA["llama.attention.head_count_kv"]
    tensors["blk.0.attn_k.weight"] = (interleaved(quantised, num_kv_heads), "Q8_0")
    with GGUFCheckpoint(write_gguf(tmp_path / "q.gguf", tensors=tensors)) as checkpoint:
        keys = checkpoint.tensor("model.layers.0.self_attn.k_proj.weight")
    assert isinstance(keys, QuantTensor)
    assert equal(keys.dequantize(), expected)


@pytest.mark.parametrize(
    "kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
)
def test_quantised_tensors_stay_quantised(tmp_path: Path, kind: str) -> None:
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = np.random.default_rng(0).integers(0, 100, (8, 512 // block_size * block_bytes), np.uint8)
    tensors: dict[str, TensorData] = {**llama_tensors(), "blk.0.ffn_down.weight": (raw, kind)}
    with GGUFCheckpoint(write_gguf(tmp_path / "k.gguf", tensors=tensors)) as checkpoint:
        value = checkpoint.tensor("model.layers.0.mlp.down_proj.weight")
    assert isinstance(value, QuantTensor)
    assert (value.kind, value.shape) == (kind, (8, 512))
    np.testing.assert_array_equal(value.data.numpy(), raw)


@pytest.mark.parametrize(("kind", "dtype"), [("F16", torch.float16), ("BF16", torch.bfloat16)])
def test_half_precision_stays_as_it_is(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    values = torch.arange(32 * 64, dtype=torch.float32).view(32, 64).to(dtype)
    raw = values.view(torch.uint8).numpy()
    tensors: dict[str, TensorData] = {**llama_tensors(), "blk.0.ffn_down.weight": (raw, kind)}
    with GGUFCheckpoint(write_gguf(tmp_path / "h.gguf", tensors=tensors)) as checkpoint:
        assert equal(checkpoint.tensor("model.layers.0.mlp.down_proj.weight"), values)


def test_a_tensor_is_a_view_of_the_file_and_outlives_it(llama_gguf: Path) -> None:
    checkpoint = GGUFCheckpoint(llama_gguf)
    first, second = (checkpoint.tensor("model.norm.weight") for _ in range(2))
    checkpoint.close()
    checkpoint.close()
    assert isinstance(first, torch.Tensor)
    assert isinstance(second, torch.Tensor)
    assert first.data_ptr() == second.data_ptr()
    np.testing.assert_array_equal(first.numpy(), llama_tensors()["output_norm.weight"])


EXPERTS = {**LLAMA_METADATA, "llama.expert_count": 3, "llama.expert_used_count": 2}


def test_experts_are_parts_of_a_tensor(tmp_path: Path) -> None:
    gates = np.random.default_rng(0).standard_normal((3, 64, 32), np.float32)
    quantised = gguf.quants.quantize(gates, gguf.GGMLQuantizationType.Q8_0)
    tensors: dict[str, TensorData] = {
        "token_embd.weight": np.zeros((4, 32), np.float32),
        "blk.0.ffn_up_exps.weight": gates,
        "blk.0.ffn_gate_exps.weight": (quantised, "Q8_0"),
        "blk.0.ffn_down_exps.weight": np.zeros((2, 32, 64), np.float32),
    }
    path = write_gguf(tmp_path / "e.gguf", metadata=EXPERTS, tensors=tensors)
    with GGUFCheckpoint(path) as checkpoint:
        shapes = checkpoint.tensor_shapes
        for expert in range(3):
            gate = f"model.layers.0.mlp.experts.{expert}.gate_proj.weight"
            up = f"model.layers.0.mlp.experts.{expert}.up_proj.weight"
            assert shapes[gate] == shapes[up] == (64, 32)
            assert equal(checkpoint.tensor(up), torch.from_numpy(gates[expert]))
            weight = checkpoint.tensor(gate)
            assert isinstance(weight, QuantTensor)
            np.testing.assert_array_equal(weight.data.numpy(), quantised[expert])
    assert shapes["model.layers.0.mlp.experts.down_proj.weight"] == (2, 32, 64), "not of three experts"


def test_rope_factors_enter_the_config(tmp_path: Path) -> None:
    factors = np.array([1, 2, 4, 8], np.float32)
    path = write_gguf(tmp_path / "r.gguf", tensors={**llama_tensors(), "rope_freqs.weight": factors})
    with GGUFCheckpoint(path) as checkpoint:
        assert checkpoint.config.rope.frequency_factors == (1, 2, 4, 8)
        assert "rope_freqs.weight" not in checkpoint.tensor_shapes


@pytest.mark.parametrize("factors", [[1, 2, 4], [1, 2, 4, 0], [1, 2, 4, float("nan")]])
def test_wrong_rope_factors_are_refused(tmp_path: Path, factors: list[float]) -> None:
    tensors = {**llama_tensors(), "rope_freqs.weight": np.array(factors, np.float32)}
    with pytest.raises(ModelFileError, match=r"rope_freqs\.weight"):
        GGUFCheckpoint(write_gguf(tmp_path / "r.gguf", tensors=tensors))


def test_output_projection_tells_whether_the_embedding_is_tied(tmp_path: Path, llama_gguf: Path) -> None:
    with GGUFCheckpoint(llama_gguf) as checkpoint:
        assert checkpoint.config.is_embedding_tied
    tensors = {**llama_tensors(), "output.weight": np.zeros((4, 32), np.float32)}
    with GGUFCheckpoint(write_gguf(tmp_path / "o.gguf", tensors=tensors)) as checkpoint:
        assert not checkpoint.config.is_embedding_tied
        assert checkpoint.tensor_shapes["lm_head.weight"] == (4, 32)


def test_a_tensor_without_a_known_name_keeps_its_own(tmp_path: Path) -> None:
    tensors: dict[str, TensorData] = {
        **llama_tensors(),
        "blk.0.ffn_gate_chexps.weight": np.zeros((2, 4, 32), np.float32),
    }
    with GGUFCheckpoint(write_gguf(tmp_path / "u.gguf", tensors=tensors)) as checkpoint:
        assert "blk.0.ffn_gate_chexps.weight" in checkpoint.tensor_shapes


def test_errors_name_the_tensor(tmp_path: Path) -> None:
    tensors: dict[str, Any] = dict(llama_tensors())
    tensors["blk.0.attn_q.weight"] = np.zeros((30, 32), np.float32)
    tensors["output_norm.weight"] = (np.zeros((34,), np.uint8), "Q8_0")
    tensors["model.norm.weight"] = np.zeros((32,), np.float32)
    path = write_gguf(tmp_path / "e.gguf", tensors=tensors)
    with pytest.raises(ModelFileError, match=r"output_norm\.weight and .* are both model\.norm\.weight"):
        GGUFCheckpoint(path)
    del tensors["model.norm.weight"]
    with GGUFCheckpoint(write_gguf(path, tensors=tensors)) as checkpoint:
        with pytest.raises(WeightsError, match=r"attn_q\.weight has 30 rows, not 4 heads of 8"):
            checkpoint.tensor("model.layers.0.self_attn.q_proj.weight")
        with pytest.raises(WeightsError, match="only matrices may be quantised"):
            checkpoint.tensor("model.norm.weight")
        with pytest.raises(WeightsError, match="there is no tensor nonsense"):
            checkpoint.tensor("nonsense")
