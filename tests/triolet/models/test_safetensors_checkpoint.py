"""Hugging Face directories: written by ``transformers`` and read back, or damaged and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tests.triolet.models.model_files import equal
from transformers import AutoConfig, AutoModelForCausalLM

from triolet.errors import ModelFileError, ModelLoadError, WeightsError
from triolet.models.checkpoint import open_checkpoint
from triolet.models.safetensors_checkpoint import SafetensorsCheckpoint
from triolet.models.source import local_files

SIZES: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip


def saved(folder: Path, model_type: str = "llama", shard_size: str = "1GB", **changes: Any) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **{**SIZES, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    model.save_pretrained(folder, max_shard_size=shard_size)
    return model


@pytest.mark.parametrize("shard_size", ["1GB", "10KB"])
@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_tensors_are_those_written(tmp_path: Path, model_type: str, shard_size: str) -> None:
    state = saved(tmp_path, model_type, shard_size).state_dict()
    files = local_files(tmp_path)
    assert (len(files.weights) > 1) == (shard_size == "10KB")
    with open_checkpoint(files) as checkpoint:
        assert checkpoint.tensor_shapes == {name: tuple(value.shape) for name, value in state.items()}
        for name, value in state.items():
            assert equal(checkpoint.tensor(name), value)


MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 3},
    "olmoe": {"num_experts": 3, "num_experts_per_tok": 2},
    "qwen2_moe": {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    "qwen3_moe": {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
}


@pytest.mark.parametrize("is_stacked", [False, True])
@pytest.mark.parametrize("model_type", MIXTURES)
def test_experts_are_the_same_in_each_layout(tmp_path: Path, model_type: str, is_stacked: bool) -> None:
    """``transformers`` writes a tensor for each, as the first files have it, and keeps them stacked."""
    state = saved(tmp_path, model_type, **MIXTURES[model_type]).state_dict()
    stored = set(load_file(tmp_path / "model.safetensors"))
    assert any(".experts.2." in name for name in stored)
    if is_stacked:
        save_file(state, tmp_path / "model.safetensors")
    with open_checkpoint(local_files(tmp_path)) as checkpoint:
        for layer in range(2):
            prefix = f"model.layers.{layer}.mlp"
            assert equal(checkpoint.tensor(f"{prefix}.gate.weight"), state[f"{prefix}.gate.weight"])
            for expert in range(3):
                one = f"{prefix}.experts.{expert}"
                gates, ups = state[f"{prefix}.experts.gate_up_proj"][expert].chunk(2)
                assert equal(checkpoint.tensor(f"{one}.gate_proj.weight"), gates)
                assert equal(checkpoint.tensor(f"{one}.up_proj.weight"), ups)
                down = state[f"{prefix}.experts.down_proj"][expert]
                assert equal(checkpoint.tensor(f"{one}.down_proj.weight"), down)
        assert not any("experts.gate_up_proj" in name for name in checkpoint.tensor_shapes)


def test_a_weight_in_two_layouts_is_refused(tmp_path: Path) -> None:
    state = saved(tmp_path, "mixtral", num_local_experts=3).state_dict()
    name = "model.layers.0.block_sparse_moe.experts.1.w2.weight"
    save_file(state | {name: torch.ones(32, 48)}, tmp_path / "model.safetensors")
    with pytest.raises(
        ModelFileError, match=r"holds model\.layers\.0\.mlp\.experts\.1\.down_proj\.weight, as"
    ):
        open_checkpoint(local_files(tmp_path))


def test_norms_of_gemma_are_plain_multipliers(tmp_path: Path) -> None:
    state = saved(tmp_path, "gemma3_text", head_dim=16).bfloat16().state_dict()
    del state["lm_head.weight"]
    save_file(state, tmp_path / "model.safetensors")
    with open_checkpoint(local_files(tmp_path)) as checkpoint:
        norms = [name for name in checkpoint.tensor_shapes if name.endswith("norm.weight")]
        assert len(norms) == 2 * 6 + 1
        for name, value in state.items():
            if name in norms:
                assert equal(checkpoint.tensor(name), value.float() + 1)
            else:
                assert equal(checkpoint.tensor(name), value)


def test_tensors_outlive_the_checkpoint(tmp_path: Path) -> None:
    state = saved(tmp_path).state_dict()
    checkpoint = open_checkpoint(local_files(tmp_path))
    value = checkpoint.tensor("model.norm.weight")
    checkpoint.close()
    checkpoint.close()
    assert equal(value, state["model.norm.weight"])


def test_what_carries_nothing_of_its_own_is_left_out(tmp_path: Path) -> None:
    state = saved(tmp_path, tie_word_embeddings=True).state_dict()
    tensors = {name: value.clone() for name, value in state.items()}
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    tensors["extra"] = torch.ones(1)
    save_file(tensors, tmp_path / "model.safetensors")
    with open_checkpoint(local_files(tmp_path)) as checkpoint:
        assert set(checkpoint.tensor_shapes) == set(state) - {"lm_head.weight"} | {"extra"}
        with pytest.raises(WeightsError, match="there is no tensor nonsense"):
            checkpoint.tensor("nonsense")


def test_an_unsupported_number_format_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    save_file({"model.norm.weight": torch.ones(4, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"model\.norm\.weight is I8, .* known are F32, F16, BF16"):
        open_checkpoint(local_files(tmp_path))


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    files = [tmp_path / name for name in ("a.safetensors", "b.safetensors")]
    for file in files:
        save_file({"x": torch.ones(1)}, file)
    with pytest.raises(ModelFileError, match=r"b\.safetensors: the tensor x is in another file too"):
        SafetensorsCheckpoint(tmp_path, files)


HEADERS = {
    "empty": b"",
    "short": b"\x08\x00",
    "huge header": (2**63).to_bytes(8, "little") + bytes(100),
    "not JSON": (4).to_bytes(8, "little") + b"abcd",
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_hostile_header_is_refused(tmp_path: Path, case: str) -> None:
    saved(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(HEADERS[case])
    with pytest.raises(ModelFileError, match=r"model\.safetensors: (is not a valid safetensors file|cannot)"):
        open_checkpoint(local_files(tmp_path))


ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F16", "BF16", "I64", "F8_E4M3", "X"]),
        "shape": st.lists(st.integers(-1, 2**64), max_size=4),
        "data_offsets": st.lists(st.integers(0, 2**64), min_size=2, max_size=2) | st.just([0, 64]),
    }
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(header=st.dictionaries(st.text(max_size=5), ENTRIES, max_size=3))
def test_any_header_fails_with_our_errors_only(tmp_path: Path, header: dict[str, Any]) -> None:
    if not (tmp_path / "config.json").exists():
        saved(tmp_path)
    raw = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(64))
    try:
        with open_checkpoint(local_files(tmp_path)) as checkpoint:
            for name in checkpoint.tensor_shapes:
                checkpoint.tensor(name)
    except ModelLoadError:
        return
