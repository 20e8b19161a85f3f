"""Faults in every stage of a real runner's step: the guilty request fails, the others do not notice."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from triolet.args import EngineArgs
from triolet.core.engine_core import EngineCore, build_core
from triolet.models.source import local_files
from triolet.plan import PlanRow, StepPlan, StepResult
from triolet.request import FinishReason, LogitsAdjustments, Request, TokenLogprobs
from triolet.runtime import sampler
from triolet.runtime.runner import ModelRunner

ARGS = EngineArgs(block_size=8, num_kv_blocks=64, max_num_seqs=8, max_num_batched_tokens=32, num_threads=1)
STAGES: dict[str, Callable[[ModelRunner], tuple[Any, str]]] = {
    "build": lambda runner: (runner._batch_builder, "build"),
    "forward": lambda runner: (runner._model, "forward"),
    "logits": lambda runner: (runner._model, "logits"),
    "begin": lambda runner: (runner._sampler, "begin"),
    "adjust": lambda runner: (runner._sampler.adjuster, "adjust"),
    "mask": lambda runner: (sampler, "draw_held"),
    "sample": lambda runner: (runner._sampler, "sample"),
    "commit": lambda runner: (runner._sampler.adjuster, "commit"),
}
CHANGE_STATE_AT_THEIR_END = ("sample", "commit")
PENALTIES = LogitsAdjustments(repetition_penalty=1.3, presence_penalty=0.5)
NUM_SEEDS = 6

Said = tuple[list[int], list[TokenLogprobs], FinishReason | None]


@pytest.fixture(scope="module")
def runner(byte_llama: Path) -> Iterator[ModelRunner]:
    runner = ModelRunner.load(local_files(byte_llama), ARGS, lambda phase: None)
    yield runner
    runner.close()


def requests() -> list[Request]:
    """Greedy and drawn, with penalties and log-probabilities, short prompts and such as come in chunks."""
    chance = random.Random(3)
    return [
        Request(
            request_id=number,
            prompt_token_ids=tuple(chance.randrange(256) for _ in range(4 + 11 * (number % 4))),
            max_tokens=6 + number,
            seed=number,
            temperature=0.9 * (number % 2),
            num_logprobs=2 if number % 3 else None,
            adjustments=PENALTIES if number > 2 else None,
        )
        for number in range(7)
    ]  # fmt: skip


def run(core: EngineCore) -> dict[int, Said]:
    said: dict[int, Said] = {}
    for request in requests():
        core.add(request)
        said[request.request_id] = ([], [], None)
    while core.has_unfinished:
        for output in core.step():
            tokens, logprobs, _ = said[output.request_id]
            tokens += output.token_ids
            logprobs += output.logprobs or ()
            said[output.request_id] = (tokens, logprobs, output.finish_reason)
        core.check_integrity()
    assert core.statistics().num_free_blocks == core.statistics().num_blocks
    return said


def check(expected: dict[int, Said], found: dict[int, Said], guilty: int) -> None:
    assert [number for number, one in found.items() if one[2] is FinishReason.ERROR] == [guilty]
    for number, one in found.items():
        if number != guilty:
            assert one == expected[number]
    tokens = found[guilty][0]
    assert tokens == expected[guilty][0][: len(tokens)]


class Watched:
    """A runner that tells which plan it is at, so that a fault can be put where a certain row is."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.rows: tuple[PlanRow, ...] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def execute(self, plan: StepPlan) -> StepResult:
        self.rows = plan.rows
        return self._runner.execute(plan)


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
@pytest.mark.parametrize("stage", STAGES)
def test_a_fault(
    runner: ModelRunner,
    stage: str,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("CRITICAL", logger="triolet")
    expected = run(build_core(runner, ARGS))
    chance = random.Random(f"{stage} {seed}")
    guilty = chance.choice([3, 4, 5, 6])  # those that every stage has to do with
    num_tokens = chance.randrange(6)
    watched = Watched(runner)
    owner, name = STAGES[stage](runner)
    original = getattr(owner, name)

    def faulty(*args: Any, **options: Any) -> Any:
        rows = (args[0],) if stage == "commit" else watched.rows
        if chance.random() < 0.5 or stage in CHANGE_STATE_AT_THEIR_END:
            fail_for(rows)
            return original(*args, **options)
        result = original(*args, **options)
        fail_for(rows)  # when what it does has been done
        return result

    def fail_for(rows: tuple[PlanRow, ...]) -> None:
        for row in rows:
            if row.request.request_id == guilty and row.is_sampled and is_due(row):
                raise RuntimeError("a fault")

    def is_due(row: PlanRow) -> bool:
        return row.start + row.num_tokens >= len(row.request.prompt_token_ids) + num_tokens

    monkeypatch.setattr(owner, name, faulty)
    check(expected, run(build_core(watched, ARGS)), guilty)


@pytest.mark.parametrize("guilty", range(7))
def test_not_a_number(runner: ModelRunner, guilty: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(build_core(runner, ARGS))
    watched = Watched(runner)
    forward = runner._model.forward  # type: ignore[union-attr]

    def poisoned(*args: Any) -> torch.Tensor:
        hidden = forward(*args)
        sampled = [row for row in watched.rows if row.is_sampled]
        for index, row in enumerate(sampled):
            if row.request.request_id == guilty and row.start > len(row.request.prompt_token_ids):
                hidden[index] = float("nan")
        return hidden

    monkeypatch.setattr(runner._model, "forward", poisoned)
    found = run(build_core(watched, ARGS))
    check(expected, found, guilty)
    assert len(found[guilty][0]) == 2
