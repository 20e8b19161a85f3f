from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from bench.gpu_models import MODELS, Batch, RandomModel, num_parameters

from triolet_kernels.reference import ReferenceOps

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model() -> RandomModel:
    return RandomModel(
        MODELS["tiny"],
        ReferenceOps(),
        CPU,
        dtype=torch.float32,
        cache_bytes=2**21,
        max_num_seqs=4,
        max_num_batched_tokens=64,
    )


def test_shapes_are_those_of_the_models() -> None:
    assert num_parameters(MODELS["Llama 3 8B"]) == pytest.approx(8.03e9 - 128256 * 4096, rel=0.01)
    assert num_parameters(MODELS["Qwen3 4B"]) == pytest.approx(4.02e9, rel=0.01)


def test_tokens_are_multiplied_with_the_experts_that_they_go_to() -> None:
    config = MODELS["a quarter of Qwen3 30B A3B"]
    whole, ends = replace(config, num_layers=48, windows=(None,) * 48), 151936 * 2048
    assert num_parameters(whole) + ends == pytest.approx(30.5e9, rel=0.01)
    assert num_parameters(whole, 1) + ends == pytest.approx(3.3e9, rel=0.02)
    assert num_parameters(whole, 1) < num_parameters(whole, 64) < num_parameters(whole)
    assert num_parameters(whole, 10**4) == pytest.approx(num_parameters(whole))


def test_steps_of_a_batch_follow_each_other(model: RandomModel) -> None:
    batch, runner = Batch(3, 40, model.num_blocks), model.runner()
    first, second = batch.plan(), batch.plan()
    assert [row.start for row in first.rows + second.rows] == [40, 40, 40, 41, 41, 41]
    blocks = [block for row in first.rows for block in row.new_block_ids[0]]
    assert len(set(blocks)) == len(blocks)
    launched = [runner.launch(first), runner.launch(second)]
    for take in launched:
        result = take()
        assert result.errors == {}
        assert len(result.token_ids) == 3


def test_tokens_do_not_depend_on_overlap(model: RandomModel) -> None:
    prompts = [[5, 9, 200], [7] * 40]
    tokens = model.generate(prompts, 12)
    assert [len(each) for each in tokens] == [12, 12]
    assert tokens == model.generate(prompts, 12, overlaps=False)
    assert tokens == [model.generate([prompt], 12)[0] for prompt in prompts]


def test_bytes_of_a_step(model: RandomModel) -> None:
    assert model.cache_bytes_of(2, 64) == 2 * 64 * 2 * 2 * 2 * 16 * 4
    assert model.weight_bytes_of(1) == model.weight_bytes_of(9) == 4 * num_parameters(model.config)
