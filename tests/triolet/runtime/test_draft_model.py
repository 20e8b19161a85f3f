"""A draft model through the whole runtime: right guesses where it thinks alike, the same tokens always."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny_models import build_tiny_model
from tests.triolet.runtime.driver import Driver

from triolet.args import EngineArgs
from triolet.models.source import local_files
from triolet.request import LogitsAdjustments
from triolet.runtime.runner import ModelRunner

LENGTH = 15
PROMPTS = [
    tuple(torch.randint(160, (n,), generator=torch.Generator().manual_seed(n)).tolist()) for n in (21, 6, 34)
]
PARAMS: list[dict[str, Any]] = [
    {"num_logprobs": 1},
    {"temperature": 1.0, "seed": 8, "num_logprobs": 1},
    {"temperature": 1.5, "top_p": 0.9, "top_k": 40, "seed": 9},
]

Path_of = Callable[[str], Path]


@pytest.fixture(scope="module")
def path_of(tmp_path_factory: pytest.TempPathFactory) -> Path_of:
    folder = tmp_path_factory.mktemp("draft_model")

    def path_of(name: str) -> Path:
        if not (folder / name).exists():
            build_tiny_model(name).save_pretrained(folder / name)
        return folder / name

    return path_of


def load(path: Path, draft: Path | None = None, **options: Any) -> ModelRunner:
    options = {"num_kv_blocks": 64, "max_num_seqs": 4} | options
    if draft is not None:
        options |= {"speculation": "draft", "draft_model": str(draft)}
    args = EngineArgs(model=str(path), device="cpu", dtype="float32", block_size=8, num_threads=1, **options)
    return ModelRunner.load(local_files(path), args, lambda phase: None)


def generate_together(runner: ModelRunner, params: list[dict[str, Any]], num_guesses: int) -> list[Any]:
    """Tokens and log-probabilities of each prompt, and the number of steps; chunks of 9, then guesses."""
    driver = Driver(runner)
    said: list[list[int]] = [[] for _ in PROMPTS]
    logprobs: list[list[Any]] = [[] for _ in PROMPTS]
    num_steps = 0
    while min(map(len, said)) < LENGTH:
        rows = []
        for slot, prompt in enumerate(PROMPTS):
            done = driver.num_tokens.get(slot, 0)
            if said[slot]:
                driver.num_tokens[slot] = len(prompt) + len(said[slot]) - 1
                given: tuple[int, ...] = (said[slot][-1],) if num_guesses else ()
                extra = {"num_draft_tokens": num_guesses, "num_tokens": 1 + num_guesses}
                rows.append(driver.row(slot, given, is_sampled=True, **extra, **params[slot]))
            else:
                part = prompt[done : done + 9]
                rows.append(
                    driver.row(slot, part, is_sampled=done + len(part) == len(prompt), **params[slot])
                )
        result = driver.step(*rows)
        assert result.errors == {}
        sampled = [row.slot for row in rows if row.is_sampled]
        for slot, tokens, entries in zip(sampled, result.token_ids, result.logprobs, strict=True):
            said[slot] += tokens
            logprobs[slot] += entries or ()
        num_steps += 1
    return [[tokens[:LENGTH] for tokens in said], [entries[:LENGTH] for entries in logprobs], num_steps]


@pytest.mark.parametrize("name", ["llama3", "gemma3"])
def test_a_model_guesses_all_that_it_will_say_itself(path_of: Path_of, name: str) -> None:
    plain = load(path_of(name))
    expected = generate_together(plain, PARAMS, 0)
    plain.close()
    runner = load(path_of(name), path_of(name))
    actual = generate_together(runner, PARAMS, 4)
    assert actual[:2] == expected[:2]
    # The longest prompt takes 4 steps of 9 tokens, and then every step gives 5.
    assert actual[2] == 4 + -(-(LENGTH - 1) // 5)
    runner.close()


@pytest.mark.parametrize(("name", "draft"), [("llama3", "llama-tied"), ("gemma3", "mistral"),
                                             ("llama3", "gemma3")])  # fmt: skip
def test_another_model_changes_no_token(path_of: Path_of, name: str, draft: str) -> None:
    plain = load(path_of(name))
    expected = generate_together(plain, PARAMS, 0)
    plain.close()
    runner = load(path_of(name), path_of(draft))
    for num_guesses in (1, 3):
        assert generate_together(runner, PARAMS, num_guesses)[:2] == expected[:2]
    runner.close()


def test_adjustments_are_the_models_affair(path_of: Path_of) -> None:
    adjustments = LogitsAdjustments(repetition_penalty=2.0, presence_penalty=1.0)
    plain = load(path_of("llama3"))
    expected, _ = Driver(plain).generate(0, PROMPTS[0], LENGTH, adjustments=adjustments)
    plain.close()
    runner = load(path_of("llama3"), path_of("llama3"))
    driver = Driver(runner)
    params: dict[str, Any] = {"adjustments": adjustments, "prompt_token_ids": PROMPTS[0]}
    result = driver.step(driver.row(0, PROMPTS[0], is_sampled=True, history=PROMPTS[0], **params))
    said = list(result.token_ids[0])
    while len(said) < LENGTH:
        driver.num_tokens[0] = len(PROMPTS[0]) + len(said) - 1
        row = driver.row(0, (said[-1],), is_sampled=True, num_draft_tokens=3, num_tokens=4, **params)
        said += driver.step(row).token_ids[0]
    assert said[:LENGTH] == expected
    runner.close()


def test_guesses_that_the_plan_makes_are_taken_as_they_are(path_of: Path_of) -> None:
    runner = load(path_of("llama3"), path_of("llama-tied"))
    plain, _ = Driver(runner).generate(0, PROMPTS[0], LENGTH)
    known = [*PROMPTS[0], *plain]

    def guess(said: list[int]) -> list[int]:
        return known[len(said) : len(said) + 3]

    assert Driver(runner).generate(1, PROMPTS[0], LENGTH, guess=guess)[0] == plain
    runner.close()


def test_memory_of_both_comes_out_of_one_budget(path_of: Path_of) -> None:
    options: dict[str, Any] = {"num_kv_blocks": None, "kv_cache_bytes": 1 << 21, "max_num_seqs": 64}
    alone = load(path_of("llama3"), **options)
    both = load(path_of("llama3"), path_of("llama3"), **options)
    assert both.layer_groups[0].num_blocks == alone.layer_groups[0].num_blocks // 2
    alone.close()
    both.close()


def test_release_and_restore(path_of: Path_of) -> None:
    runner = load(path_of("llama3"), path_of("llama3"))
    before = generate_together(runner, PARAMS, 2)
    runner.release()
    for part in ("weights", "kv_cache"):
        runner.restore(part)
    assert generate_together(runner, PARAMS, 2) == before
    runner.close()
