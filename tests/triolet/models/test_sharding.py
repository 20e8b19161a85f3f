"""Shards of tiny models, put together, against the whole; and what cannot be cut."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.paged import PagedModel
from tests.shards import BarrierSum, run_shards
from tests.tiny_models import build_tiny_model, save_gguf
from torch import Tensor

from triolet.errors import UsageError
from triolet.models.checkpoint import open_checkpoint
from triolet.models.config import ModelConfig
from triolet.models.loader import load_model
from triolet.models.sharding import Shard, check_shards, cut
from triolet.models.source import local_files
from triolet_kernels.ops import select_ops

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
LIMIT = 1e-4
PROMPTS = {0: range(3, 44), 1: (7,), 2: range(90, 60, -1)}

CASES = (
    ("llama3", 2, False),  # two queries for each key
    ("llama3", 4, False),  # keys on two shards each
    ("llama-tied", 2, True),
    ("qwen2", 2, True),  # biases
    ("qwen2-window", 3, False),
    ("qwen3", 2, False),  # norms of heads
    ("gemma3", 2, True),  # windows, norms after; three blocks to cut between
    ("gemma3", 4, False),
    ("mixtral", 2, False),  # of each expert a part
    ("qwen2-moe", 2, False),  # of the shared one, too
    ("qwen2-moe", 2, True),
    ("qwen3-moe", 2, True),
)


def logits_of(path: Path, shard: Shard | None) -> Tensor:
    with open_checkpoint(local_files(path)) as checkpoint:
        model = load_model(
            checkpoint, select_ops(CPU, num_threads=1), dtype=torch.float32, device=CPU, shard=shard
        )
    paged = PagedModel(model)
    return torch.cat([paged.step_last(PROMPTS), paged.step_last({1: (5,), 0: (9,)})])


@pytest.mark.parametrize(("name", "count", "is_quantised"), CASES)
def test_shards_together_are_the_whole(name: str, count: int, is_quantised: bool, tmp_path: Path) -> None:
    model = build_tiny_model(name)
    path = tmp_path / ("model.gguf" if is_quantised else "model")
    if is_quantised:
        save_gguf(model, path, "Q8_0")
    else:
        model.save_pretrained(path)
    with open_checkpoint(local_files(path)) as checkpoint:
        config = checkpoint.config
    adder = BarrierSum(count)

    def run(index: int) -> Tensor:
        return logits_of(path, Shard.of(config, index, count, adder.of(index)))

    expected = logits_of(path, None)
    actual = torch.cat(run_shards(count, run), dim=1)
    assert actual.shape == expected.shape
    assert ((actual - expected).abs().max() / expected.abs().max()).item() < LIMIT


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    build_tiny_model("llama3").save_pretrained(tmp_path)
    with open_checkpoint(local_files(tmp_path)) as checkpoint:
        return checkpoint.config


def test_every_part_is_there_once(config: ModelConfig) -> None:
    shards = [Shard.of(replace(config, vocab_size=161), index, 4, torch.clone) for index in range(4)]
    for name, size in (("q_proj", 64), ("up_proj", 96), ("lm_head", 161)):
        parts = [shard.part_of(f"model.layers.0.{name}") for shard in shards]
        assert [index for part in parts for index in range(size)[part]] == list(range(size))
    assert [shard.part_of("k_proj") for shard in shards] == [slice(0, 16)] * 2 + [slice(16, 32)] * 2
    assert {(shard.config.num_heads, shard.config.num_kv_heads) for shard in shards} == {(1, 1)}
    assert sum(shard.config.intermediate_size for shard in shards) == 96


@pytest.mark.parametrize("count", [3, 8])
def test_heads_that_cannot_be_shared_out_are_refused(config: ModelConfig, count: int) -> None:
    with pytest.raises(UsageError, match=f"is {count}, but the model has 4 attention heads") as caught:
        check_shards(config, count)
    assert caught.value.param == "tensor_parallel_size"
    assert "possible are 1, 2, 4" in str(caught.value)


def test_norms_over_all_heads_are_refused(config: ModelConfig) -> None:
    wide = replace(config, has_wide_qk_norm=True)
    check_shards(wide, 1)
    with pytest.raises(
        UsageError, match="is 2, but the model normalises queries over all its heads"
    ) as caught:
        check_shards(wide, 2)
    assert caught.value.param == "tensor_parallel_size"


def test_a_cut_through_quantised_blocks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    save_gguf(build_tiny_model("llama2"), path, "Q8_0")
    with open_checkpoint(local_files(path)) as checkpoint:
        shard = Shard.of(checkpoint.config, 0, 4, torch.clone)  # heads of 16, blocks of 32
    with pytest.raises(UsageError, match="Q8_0 is cut between blocks of 32 columns"):
        logits_of(path, shard)


@pytest.mark.parametrize(
    ("size", "multiple", "sizes"), [(10, 1, [3, 3, 4]), (96, 32, [32, 32, 32]), (100, 32, [32, 32, 36])]
)
def test_cuts_are_whole_multiples(size: int, multiple: int, sizes: list[int]) -> None:
    parts = cut(size, 3, multiple)
    assert [part.stop - part.start for part in parts] == sizes
    assert parts[0].start == 0
    assert parts[-1].stop == size
