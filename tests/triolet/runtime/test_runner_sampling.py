"""What a request may ask of sampling, through the whole runtime, against ``transformers``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.tiny_models import build_tiny_model
from tests.triolet.runtime.driver import Driver
from tests.triolet.runtime.fake_constraints import FakeConstraints

from triolet.args import EngineArgs
from triolet.models.source import local_files
from triolet.request import LogitsAdjustments, TokenLogprobs
from triolet.runtime.runner import ModelRunner

ARGS = EngineArgs(
    device="cpu", block_size=8, num_kv_blocks=64, max_num_seqs=4, num_threads=1, dtype="float32"
)
LENGTH = 16
PROMPT = tuple(torch.randint(160, (40,), generator=torch.Generator().manual_seed(6)).tolist())

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"num_logprobs": 2},
    "seeded": {"temperature": 1.0, "seed": 3, "num_logprobs": 2},
    "filtered": {"temperature": 1.3, "top_p": 0.9, "top_k": 50, "seed": 4, "num_logprobs": 1},
    "penalised": {
        "temperature": 0.7, "seed": 5,
        "adjustments": LogitsAdjustments(repetition_penalty=1.3, presence_penalty=0.5),
    },
    "grammar": {"adjustments": LogitsAdjustments(grammar=" ".join(["1|3|5|7", "2|4|6|8"] * 12))},
}  # fmt: skip


@pytest.fixture(scope="module")
def reference_model() -> Any:
    return build_tiny_model("llama3")


@pytest.fixture(scope="module")
def model_path(reference_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runner_sampling") / "llama3"
    reference_model.save_pretrained(path)
    return path


@pytest.fixture
def runner(model_path: Path) -> Iterator[ModelRunner]:
    runner = ModelRunner.load(local_files(model_path), ARGS, lambda phase: None, FakeConstraints())
    yield runner
    runner.close()


def log_softmax_of(model: Any, token_ids: tuple[int, ...]) -> torch.Tensor:
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([token_ids])).logits[0].double(), dim=-1)


def assert_entry(entry: TokenLogprobs, expected: torch.Tensor, token_id: int, num_top: int) -> None:
    assert entry.token_ids == (token_id, *expected.topk(num_top).indices.tolist())
    values = torch.tensor(entry.logprobs, dtype=torch.float64)
    torch.testing.assert_close(values, expected[list(entry.token_ids)], rtol=0, atol=2e-5)
    assert entry.rank == 1 + int((expected > expected[token_id]).sum())


@pytest.mark.parametrize("chunks", [(40,), (7, 20, 13), (39, 1)], ids=str)
def test_prompt_logprobs_are_those_of_the_model(
    runner: ModelRunner, reference_model: Any, chunks: tuple[int, ...]
) -> None:
    driver = Driver(runner)
    expected = log_softmax_of(reference_model, PROMPT)
    entries: list[TokenLogprobs] = []
    done = 0
    for count in chunks:
        part = PROMPT[done : done + count]
        done += count
        asking = driver.row(
            1, part, is_sampled=done == len(PROMPT), prompt_token_ids=PROMPT, num_prompt_logprobs=3
        )
        result = driver.step(driver.row(0, (5, 6), is_sampled=True), asking)
        assert result.errors == {}
        assert 0 not in result.prompt_logprobs
        entries += result.prompt_logprobs.get(1, ())
    assert len(entries) == len(PROMPT) - 1
    for position, entry in enumerate(entries):
        assert_entry(entry, expected[position], PROMPT[position + 1], 3)


def test_repetition_penalty_is_that_of_transformers(runner: ModelRunner, reference_model: Any) -> None:
    processor = transformers.RepetitionPenaltyLogitsProcessor(1.8)
    said = list(PROMPT)
    with torch.inference_mode():
        for _ in range(LENGTH):
            token_ids = torch.tensor([said])
            said.append(int(processor(token_ids, reference_model(token_ids).logits[:, -1])[0].argmax()))
    adjustments = LogitsAdjustments(repetition_penalty=1.8)
    tokens, _ = Driver(runner).generate(0, PROMPT, LENGTH, adjustments=adjustments)
    assert tokens == said[len(PROMPT) :]


@pytest.mark.parametrize("mode", ["raw", "processed"])
def test_logprobs_of_either_mode(model_path: Path, reference_model: Any, mode: Any) -> None:
    args = EngineArgs(
        device="cpu", block_size=8, num_kv_blocks=64, num_threads=1, dtype="float32", logprobs_mode=mode
    )
    runner = ModelRunner.load(local_files(model_path), args, lambda phase: None)
    bias = LogitsAdjustments(logit_bias=((9, 6.0), (11, 5.0)))
    params: dict[str, Any] = {"temperature": 0.5, "seed": 2, "num_logprobs": 4, "adjustments": bias}
    tokens, entries = Driver(runner).generate(0, PROMPT, 6, **params)
    runner.close()
    raw = log_softmax_of(reference_model, (*PROMPT, *tokens[:-1]))[len(PROMPT) - 1 :]
    for position, entry in enumerate(entries):
        expected = raw[position]
        if mode == "processed":
            expected = expected.clone()
            expected[9] += 6
            expected[11] += 5
            expected = torch.log_softmax(expected / 0.5, dim=-1)
        assert_entry(entry, expected, tokens[position], 4)


@pytest.mark.parametrize("kind", KINDS)
def test_guesses_change_neither_tokens_nor_logprobs(runner: ModelRunner, kind: str) -> None:
    plain = Driver(runner).generate(0, PROMPT, LENGTH, **KINDS[kind])
    known = [*PROMPT, *plain[0]]

    def often_right(tokens: list[int]) -> list[int]:
        guesses = known[len(tokens) : len(tokens) + 1 + len(tokens) % 5]
        return [0, *guesses] if len(tokens) % 4 == 0 else [*guesses[:-1], 1]

    guessers: list[Callable[[list[int]], list[int]]] = [
        lambda tokens: known[len(tokens) : len(tokens) + 4],
        often_right,
        lambda tokens: [],
    ]
    for guess in guessers:
        assert Driver(runner).generate(2, PROMPT, LENGTH, guess=guess, **KINDS[kind]) == plain


def test_company_changes_nothing(runner: ModelRunner) -> None:
    """All kinds in one batch, each guessing differently, token by token what they give alone."""
    kinds = list(KINDS.values())[:4]
    alone = [Driver(runner).generate(0, PROMPT, LENGTH, **params)[0] for params in kinds]
    driver = Driver(runner)
    tokens: list[list[int]] = [[] for _ in kinds]
    while min(map(len, tokens)) < LENGTH:
        rows = []
        for slot, params in enumerate(kinds):
            said = tokens[slot]
            draft = tuple(alone[slot][len(said) : len(said) + slot]) if said else ()
            given = (said[-1], *draft) if said else PROMPT
            if said:
                driver.num_tokens[slot] = len(PROMPT) + len(said) - 1
            rows.append(
                driver.row(
                    slot, given, is_sampled=True, num_draft_tokens=len(draft), prompt_token_ids=PROMPT,
                    history=None if said else PROMPT, **params,
                )
            )  # fmt: skip
        result = driver.step(*rows)
        assert result.errors == {}
        for said, sampled in zip(tokens, result.token_ids, strict=True):
            said += sampled
    assert [said[:LENGTH] for said in tokens] == [said[:LENGTH] for said in alone]


def test_the_unknown_token_is_the_last_of_several(runner: ModelRunner) -> None:
    plain, _ = Driver(runner).generate(0, PROMPT, 6)
    driver = Driver(runner)
    first = driver.step(driver.row(0, PROMPT, is_sampled=True))
    guessed = driver.step(driver.row(0, (plain[0], plain[1], plain[2]), is_sampled=True, num_draft_tokens=2))
    unknown = driver.step(driver.row(0, (), is_sampled=True))
    assert [*first.token_ids, *guessed.token_ids, *unknown.token_ids] == [
        tuple(plain[:1]), tuple(plain[1:4]), tuple(plain[4:5]),
    ]  # fmt: skip


def test_a_processor_that_fails_ends_its_row_alone(runner: ModelRunner) -> None:
    def broken(output_token_ids: Any, logits: Any) -> Any:
        raise RuntimeError("out of order")

    driver = Driver(runner)
    expected = driver.step(driver.row(0, PROMPT, is_sampled=True))
    driver = Driver(runner)
    bad = LogitsAdjustments(processors=(broken,))
    result = driver.step(
        driver.row(1, (4, 5), is_sampled=True, adjustments=bad, history=(4, 5)),
        driver.row(0, PROMPT, is_sampled=True),
    )
    assert list(result.errors) == [0]
    assert "broken raised RuntimeError: out of order" in result.errors[0]
    assert result.token_ids[1:] == expected.token_ids
