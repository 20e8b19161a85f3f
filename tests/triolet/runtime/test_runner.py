"""The whole runtime on a tiny random model, against ``transformers``; and what goes wrong, on a toy."""

from __future__ import annotations

import gc
import json
import shutil
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny_models import build_tiny_model
from tests.triolet.runtime.driver import Driver
from torch import Tensor

from triolet.args import EngineArgs
from triolet.errors import UsageError
from triolet.models.source import local_files
from triolet.plan import LayerGroup
from triolet.runtime import kv_cache_size, loading
from triolet.runtime import runner as runner_module
from triolet.runtime.kv_cache import KVCacheTensors
from triolet.runtime.runner import ModelRunner
from triolet_kernels.ops import AttentionBatch

NUM_GENERATED = 12
PROMPT_LENGTHS = (30, 5, 17)
ARGS = EngineArgs(
    device="cpu", kernels="reference", block_size=8, num_kv_blocks=64, max_num_seqs=4, num_threads=1
)


@pytest.fixture(scope="module")
def reference_model() -> Any:
    return build_tiny_model("llama3")


@pytest.fixture(scope="module")
def model_path(reference_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runner") / "llama3"
    reference_model.save_pretrained(path)
    return path


@pytest.fixture
def runner(model_path: Path) -> Iterator[ModelRunner]:
    runner = ModelRunner.load(local_files(model_path), ARGS, lambda phase: None)
    yield runner
    runner.close()


def make_prompts() -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(4)
    return [tuple(torch.randint(160, (n,), generator=generator).tolist()) for n in PROMPT_LENGTHS]


def greedy_of(model: Any, prompt: tuple[int, ...]) -> list[int]:
    """Greedy continuation by ``transformers``, the whole sequence anew for each token."""
    token_ids = list(prompt)
    with torch.inference_mode():
        for _ in range(NUM_GENERATED):
            token_ids.append(int(model(torch.tensor([token_ids])).logits[0, -1].argmax()))
    return token_ids[len(prompt) :]


def test_whole_prefill_then_known_tokens(runner: ModelRunner, reference_model: Any) -> None:
    for slot, prompt in enumerate(make_prompts()):
        driver = Driver(runner)
        tokens: list[int] = []
        given = prompt
        for _ in range(NUM_GENERATED):
            result = driver.step(driver.row(slot, given, is_sampled=True))
            assert result.step_id == 7
            tokens += result.token_ids[0]
            given = result.token_ids[0]
        assert tokens == greedy_of(reference_model, prompt)


def test_chunked_prefill_unknown_tokens_and_company(runner: ModelRunner, reference_model: Any) -> None:
    driver, prompts = Driver(runner), make_prompts()
    slots, chunks = (2, 0, 3), (7, 5, 4)
    tokens: dict[int, list[int]] = {slot: [] for slot in slots}
    while any(len(part) < NUM_GENERATED for part in tokens.values()):
        rows = []
        for slot, prompt, chunk in zip(slots, prompts, chunks, strict=True):
            done = driver.num_tokens.get(slot, 0)
            part = prompt[done : done + chunk]
            rows.append(driver.row(slot, part, is_sampled=done + len(part) >= len(prompt)))
        rows.reverse()
        result = driver.step(*rows)
        sampled = [row.slot for row in rows if row.is_sampled]
        for slot, sample in zip(sampled, result.token_ids, strict=True):
            tokens[slot] += sample
    for slot, prompt in zip(slots, prompts, strict=True):
        assert tokens[slot][:NUM_GENERATED] == greedy_of(reference_model, prompt)


def test_seeded_rows_do_not_depend_on_company(runner: ModelRunner) -> None:
    prompts = make_prompts()
    params: list[dict[str, Any]] = [
        {"temperature": 1.0, "seed": 5},
        {"temperature": 1.5, "top_p": 0.9, "seed": 6, "num_logprobs": 2},
        {"temperature": 0.8, "top_k": 7, "seed": 7},
    ]

    def run(slots: list[int]) -> dict[int, list[int]]:
        driver = Driver(runner)
        tokens: dict[int, list[int]] = {slot: [] for slot in slots}
        for step in range(NUM_GENERATED):
            rows = [
                driver.row(slot, () if step else prompts[slot], is_sampled=True, **params[slot])
                for slot in slots
            ]
            for slot, sample in zip(slots, driver.step(*rows).token_ids, strict=True):
                tokens[slot] += sample
        return tokens

    together = run([2, 0, 1])
    for slot in range(3):
        assert run([slot])[slot] == together[slot]


def test_rows_that_sample_nothing_give_nothing(runner: ModelRunner) -> None:
    driver = Driver(runner)
    result = driver.step(driver.row(0, (1, 2, 3), is_sampled=False))
    assert (result.token_ids, result.logprobs, result.errors) == ((), (), {})


def test_bad_token_hurts_its_row_alone(runner: ModelRunner) -> None:
    driver = Driver(runner)
    expected = driver.step(driver.row(0, (1, 2, 3), is_sampled=True))
    driver = Driver(runner)
    result = driver.step(
        driver.row(1, (4, 160, 5), is_sampled=False), driver.row(0, (1, 2, 3), is_sampled=True)
    )
    assert list(result.errors) == [0]
    assert "160" in result.errors[0]
    assert result.token_ids == expected.token_ids


def test_load_tells_its_phases_and_its_numbers(model_path: Path) -> None:
    phases: list[str] = []
    runner = ModelRunner.load(local_files(model_path), ARGS, phases.append)
    assert list(dict.fromkeys(phases)) == ["loading weights", "allocating KV cache", "warming up"]
    assert phases.count("loading weights") > 20, "once for each tensor, so that loading can be ended soon"
    numbers = (runner.layer_groups, runner.block_size, runner.max_model_len, runner.vocab_size)
    assert numbers == ((LayerGroup(num_blocks=64),), 8, 256, 160)
    runner.close()


def test_load_leaves_torch_as_it_was(model_path: Path) -> None:
    before = (torch.get_num_threads(), torch.is_grad_enabled(), torch.is_inference_mode_enabled())
    runner = ModelRunner.load(local_files(model_path), ARGS, lambda phase: None)
    assert torch.get_num_threads() == 1
    runner.close()
    runner.close()
    assert before == (torch.get_num_threads(), torch.is_grad_enabled(), torch.is_inference_mode_enabled())
    with pytest.raises(UsageError, match="--max-model-len 16"):
        ModelRunner.load(
            local_files(model_path),
            EngineArgs(num_kv_blocks=2, block_size=8, num_threads=1),
            lambda phase: None,
        )
    assert before == (torch.get_num_threads(), torch.is_grad_enabled(), torch.is_inference_mode_enabled())


def test_a_context_beyond_all_memory_is_refused_before_anything_is_loaded(
    model_path: Path, tmp_path: Path
) -> None:
    """Its rotary table alone would be hundreds of gigabytes."""
    shutil.copytree(model_path, tmp_path / "endless")
    config = json.loads((model_path / "config.json").read_text())
    (tmp_path / "endless" / "config.json").write_text(
        json.dumps(config | {"max_position_embeddings": 1 << 30})
    )
    phases: list[str] = []
    args = EngineArgs(device="cpu", num_threads=1)
    with pytest.raises(UsageError, match="the longest that fits is --max-model-len"):
        ModelRunner.load(local_files(tmp_path / "endless"), args, phases.append)
    assert phases == ["loading weights"]


def test_close_gives_weights_and_cache_back(model_path: Path) -> None:
    runner = ModelRunner.load(local_files(model_path), ARGS, lambda phase: None)
    model, (keys, values) = weakref.ref(runner._model), map(weakref.ref, runner._kv_cache[0])
    assert model() is not None
    assert keys() is not None
    runner.close()
    gc.collect()
    assert (model(), keys(), values()) == (None, None, None)


def test_kept_prefixes_make_room_before_all_of_a_cache_is_used_whose_size_nobody_gave(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_cache_size, "CPU_BYTES_BEFORE_EVICTION", 0)  # so that it is one sequence
    args = EngineArgs(device="cpu", block_size=8, max_num_seqs=4)
    runner = ModelRunner.load(local_files(model_path), args, lambda phase: None)
    assert runner.layer_groups == (LayerGroup(num_blocks=4 * 32, num_before_eviction=32),)
    runner.close()


def test_memory_that_loading_has_freed_goes_back_before_steps(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases: list[str] = []
    monkeypatch.setattr(runner_module, "trim_allocator", lambda: phases.append("trimmed"))
    ModelRunner.load(local_files(model_path), ARGS, phases.append).close()
    assert phases[-2:] == ["trimmed", "warming up"]


@pytest.mark.parametrize(("num_kv_blocks", "max_model_len"), [(4, 32), (32, 256), (99, 256)])
def test_auto_is_the_longest_context_that_the_cache_holds(
    model_path: Path, num_kv_blocks: int, max_model_len: int
) -> None:
    args = EngineArgs(device="cpu", block_size=8, max_model_len="auto", num_kv_blocks=num_kv_blocks)
    runner = ModelRunner.load(local_files(model_path), args, lambda phase: None)
    assert runner.max_model_len == max_model_len
    assert runner.layer_groups == (LayerGroup(num_blocks=num_kv_blocks),)
    runner.close()


def test_engines_that_share_the_memory_take_no_more_of_it_than_one(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "available_memory", lambda *of: 2**24)
    args = EngineArgs(device="cpu", kernels="reference", block_size=8, num_threads=1)
    num_blocks = []
    for num_sharing in (1, 2):
        runner = ModelRunner.load(local_files(model_path), args, lambda phase: None, num_sharing=num_sharing)
        num_blocks.append(runner.layer_groups[0].num_blocks)
        runner.close()
    assert num_blocks[0] == 2 * num_blocks[1]


@pytest.mark.parametrize("max_model_len", [1, 2, 8, 256])
def test_warm_up_fits_any_context(model_path: Path, max_model_len: int) -> None:
    args = EngineArgs(
        device="cpu", block_size=8, max_model_len=max_model_len, num_kv_blocks=-(-max_model_len // 8)
    )
    ModelRunner.load(local_files(model_path), args, lambda phase: None).close()


class Toy:
    """Likes the token after the last one best; spoils the logits after a token above 90."""

    def forward(
        self, token_ids: Tensor, batches: Sequence[AttentionBatch], kv_cache: KVCacheTensors, rows: Tensor
    ) -> Tensor:
        return token_ids[rows]

    def logits(self, hidden: Tensor) -> Tensor:
        last = hidden
        logits = torch.zeros(len(last), 100)
        logits[torch.arange(len(last)), (last + 1) % 100] = 1.0
        logits[last > 90] = torch.nan
        return logits


def make_toy_runner() -> ModelRunner:
    cache = ((torch.zeros(16, 1, 8, 4), torch.zeros(16, 1, 8, 4)),)
    return ModelRunner(
        Toy(),
        cache,
        (LayerGroup(num_blocks=16),),
        vocab_size=100,
        max_model_len=64,
        max_num_seqs=4,
        device=torch.device("cpu"),
    )


def test_errors_are_by_the_index_of_the_row_in_the_plan() -> None:
    driver = Driver(make_toy_runner())
    result = driver.step(
        driver.row(0, (5, 6), is_sampled=False),
        driver.row(1, (91,), is_sampled=True),
        driver.row(2, (8, 9), is_sampled=True),
    )
    assert result.token_ids == ((0,), (10,))
    assert list(result.errors) == [1]
    assert "not finite" in result.errors[1]


def test_unknown_token_after_an_error_is_harmless() -> None:
    driver = Driver(make_toy_runner())
    driver.step(driver.row(1, (95,), is_sampled=True), driver.row(0, (20,), is_sampled=True))
    result = driver.step(driver.row(1, (), is_sampled=True), driver.row(0, (), is_sampled=True))
    assert result.token_ids == ((1,), (22,))
    assert result.errors == {}


def test_unknown_tokens_are_those_of_the_last_step_that_sampled_in_the_slot() -> None:
    driver = Driver(make_toy_runner())
    driver.step(driver.row(0, (10,), is_sampled=True), driver.row(3, (30,), is_sampled=True))
    driver.step(driver.row(0, (), is_sampled=True))
    result = driver.step(driver.row(3, (), is_sampled=True), driver.row(0, (), is_sampled=True))
    assert result.token_ids == ((32,), (13,))


def test_a_probe_changes_nothing(runner: ModelRunner, reference_model: Any) -> None:
    (prompt, *_) = make_prompts()
    driver = Driver(runner)
    tokens: list[int] = []
    given = prompt
    for _ in range(NUM_GENERATED):
        runner.probe()
        (given,) = driver.step(driver.row(1, given, is_sampled=True)).token_ids
        tokens += given
    assert tokens == greedy_of(reference_model, prompt)


@pytest.mark.model
def test_real_model_knows_a_capital(smollm2_path: Path) -> None:
    runner = ModelRunner.load(
        local_files(smollm2_path),
        EngineArgs(device="cpu", max_model_len=64, max_num_seqs=2, num_threads=1),
        lambda phase: None,
    )
    driver = Driver(runner)
    tokens: list[int] = []
    given: tuple[int, ...] = (504, 3575, 282, 4649, 314)  # "The capital of France is"
    for _ in range(3):
        result = driver.step(driver.row(0, given, is_sampled=True, num_logprobs=1))
        tokens += result.token_ids[0]
        given = ()
    runner.close()
    assert tokens == [7042, 30, 198]  # " Paris.\n"


def test_instructions_this_cpu_lacks_are_a_usage_error(
    byte_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIOLET_CPU_ISA", "sse9")
    with pytest.raises(UsageError, match=r"TRIOLET_CPU_ISA=sse9: must be one of"):
        ModelRunner.load(local_files(byte_llama), EngineArgs(), lambda phase: None)
