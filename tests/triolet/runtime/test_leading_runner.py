"""Shards that compute together as one runner: equal to the whole, asleep, failing, and gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.shards import make_places
from tests.tiny_models import build_tiny_model

from triolet.args import EngineArgs
from triolet.core.engine_core import EngineCore, build_core
from triolet.errors import EngineDeadError, ModelLoadError, UsageError
from triolet.models.decoder import Decoder
from triolet.models.source import local_files
from triolet.request import FinishReason, Request, TokenOutput
from triolet.runtime import following_shard, loading
from triolet.runtime.following_shard import follow_place
from triolet.runtime.kv_cache_size import choose_sizes
from triolet.runtime.leading_runner import LeadingRunner
from triolet.runtime.runner import ModelRunner

ARGS = EngineArgs(
    device="cpu", dtype="float32", block_size=8, num_kv_blocks=64, max_num_seqs=4, num_threads=1,
    max_num_batched_tokens=32,
)  # fmt: skip
LENGTHS = (30, 5, 17)

Answers = dict[int, tuple[list[int], list[float]]]


class Shards:
    """A leading runner here, and the others as threads."""

    def __init__(self, path: Path, count: int, args: EngineArgs = ARGS) -> None:
        self.files = local_files(path)
        places = make_places(count)
        self.threads = ThreadPoolExecutor(count)
        self.following: list[Future[None]] = [
            self.threads.submit(follow_place, place, self.files, args, num_sharing=count)
            for place in places[1:]
        ]
        self.runner = LeadingRunner.lead_at(
            places[0], self.files, args, lambda phase: None, num_sharing=count
        )

    def end(self) -> list[BaseException | None]:
        """Close, and what the others ended with."""
        self.runner.close()
        errors = [future.exception(timeout=20) for future in self.following]
        self.threads.shutdown()
        return errors


@pytest.fixture(scope="module")
def make_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    paths: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in paths:
            paths[name] = tmp_path_factory.mktemp(name)
            build_tiny_model(name).save_pretrained(paths[name])
        return paths[name]

    return make


@pytest.fixture
def shards(make_path: Callable[[str], Path]) -> Iterator[Shards]:
    shards = Shards(make_path("llama3"), 2)
    yield shards
    shards.end()


def answer(runner: ModelRunner, **options: Any) -> Answers:
    """Tokens and logprobs of three prompts at once, in chunks, some of it drawn."""
    core = build_core(runner, ARGS)
    generator = torch.Generator().manual_seed(4)
    for index, length in enumerate(LENGTHS):
        prompt = tuple(torch.randint(100, (length,), generator=generator).tolist())
        core.add(
            Request(
                request_id=index,
                prompt_token_ids=prompt,
                max_tokens=12,
                seed=index,
                temperature=float(index == 1),
                num_logprobs=2,
                num_prompt_logprobs=0,
                **options,
            )
        )
    return run(core)


def run(core: EngineCore) -> Answers:
    answers: Answers = {}
    while core.has_unfinished:
        for output in core.step():
            assert output.error is None, output.error
            tokens, logprobs = answers.setdefault(output.request_id, ([], []))
            tokens += output.token_ids
            logprobs += [value for entry in output.logprobs or () for value in entry.logprobs]
            logprobs += [value for entry in output.prompt_logprobs or () for value in entry.logprobs]
    return answers


@pytest.mark.parametrize(("name", "count"), [("llama3", 4), ("qwen2", 2), ("gemma3", 2)])
def test_shards_answer_as_one_runner_does(make_path: Callable[[str], Path], name: str, count: int) -> None:
    whole = ModelRunner.load(local_files(make_path(name)), ARGS, lambda phase: None)
    expected = answer(whole)
    whole.close()
    shards = Shards(make_path(name), count)
    actual = answer(shards.runner)
    again = answer(shards.runner)
    assert shards.end() == [None] * (count - 1)
    assert actual == again, "bit for bit"
    for index, (tokens, logprobs) in expected.items():
        assert actual[index][0] == tokens
        assert actual[index][1] == pytest.approx(logprobs, abs=1e-4)


def test_a_draft_model_guesses_at_shard_0_alone(make_path: Callable[[str], Path]) -> None:
    path = make_path("llama3")
    args = EngineArgs(
        device="cpu", dtype="float32", block_size=8, num_kv_blocks=64, max_num_seqs=4, num_threads=1,
        max_num_batched_tokens=32, speculation="draft", draft_model=str(path), num_speculative_tokens=2,
    )  # fmt: skip
    shards = Shards(path, 2, args)
    guessed = answer(shards.runner)
    shards.end()
    plain = Shards(path, 2)
    expected = answer(plain.runner)
    plain.end()
    assert {index: tokens for index, (tokens, _) in guessed.items()} == {
        index: tokens for index, (tokens, _) in expected.items()
    }


def test_after_sleep_everything_is_as_before(shards: Shards) -> None:
    expected = answer(shards.runner)
    shards.runner.release()
    for part in ("kv_cache", "weights"):
        shards.runner.restore(part)
    shards.runner.probe()
    assert answer(shards.runner) == expected


def test_a_shard_that_cannot_be_restored_is_told_of(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = answer(shards.runner)
    shards.runner.release()

    def fail(self: Any) -> None:
        raise ModelLoadError("the file is gone")

    with monkeypatch.context() as patched:
        patched.setattr(following_shard._FollowingShard, "_restore_weights", fail)
        with pytest.raises(ModelLoadError, match="the file is gone"):
            shards.runner.restore("weights")
    shards.runner.restore("weights")
    shards.runner.restore("kv_cache")
    assert answer(shards.runner) == expected


@pytest.mark.parametrize("failing", ["forward", "logits"])
@pytest.mark.parametrize("is_leader", [True, False])
def test_what_fails_in_one_shard_fails_the_step_and_nothing_else(
    shards: Shards, monkeypatch: pytest.MonkeyPatch, failing: str, is_leader: bool
) -> None:
    """A prompt of 17 tokens is more than one shard's memory takes; the others are answered."""
    expected = answer(shards.runner)
    leading: Any = shards.runner._model
    leading_decoder = leading._model
    original = getattr(Decoder, "_transform" if failing == "forward" else "logits")

    def fail(self: Decoder, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        result: torch.Tensor = original(self, x, *rest)
        is_poisoned = len(x) == 17 if failing == "forward" else len(x) == 3
        if is_poisoned and (self is leading_decoder) == is_leader:
            raise MemoryError("no memory")
        return result

    core = build_core(shards.runner, ARGS)
    if failing == "logits":
        monkeypatch.setattr(Decoder, "logits", fail)
        for index in range(3):
            core.add(Request(request_id=index, prompt_token_ids=(index + 1,), max_tokens=2, seed=0))
    else:
        monkeypatch.setattr(Decoder, "_transform", fail)
        core.add(Request(request_id=0, prompt_token_ids=(1,) * 17, max_tokens=2, seed=0))
    ended: dict[int, TokenOutput] = {}
    while core.has_unfinished:
        ended |= {out.request_id: out for out in core.step() if out.finish_reason}
    reasons = {index: out.finish_reason for index, out in ended.items()}
    if failing == "logits":
        assert reasons == dict.fromkeys(range(3), FinishReason.LENGTH)
    else:
        assert reasons == {0: FinishReason.ERROR}
        assert "out of memory" in str(ended[0].error)
        assert is_leader or "tensor parallel shard 1" in str(ended[0].error)
    monkeypatch.undo()
    assert answer(shards.runner) == expected


def test_a_shard_that_is_lost_ends_the_engine_at_once(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise SystemError("broken")

    monkeypatch.setattr(following_shard, "split_batch", fail)
    core = build_core(shards.runner, ARGS)
    core.add(Request(request_id=0, prompt_token_ids=(1, 2), max_tokens=2, seed=0))
    with pytest.raises(EngineDeadError, match="shard 1 failed: SystemError: broken"):
        core.step()
    [error] = shards.end()
    assert isinstance(error, SystemError)


def test_what_does_not_go_with_the_model_is_said_before_anybody_comes(
    make_path: Callable[[str], Path],
) -> None:
    place = make_places(3)[0]
    with pytest.raises(UsageError, match="is 3, but the model has 4 attention heads"):
        LeadingRunner.lead_at(place, local_files(make_path("llama3")), ARGS, lambda phase: None)


def test_all_take_the_smallest_context_and_cache(
    make_path: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    choose, callers = choose_sizes, []

    def choose_less(*arguments: Any) -> tuple[int, tuple[int, ...]]:
        callers.append(1)
        length, blocks = choose(*arguments)
        return length - 8 * len(callers), tuple(count - len(callers) for count in blocks)

    monkeypatch.setattr(loading, "choose_sizes", choose_less)
    shards = Shards(make_path("llama3"), 2)
    runner = shards.runner
    assert [group.num_blocks for group in runner.layer_groups] == [64 - 4]
    assert runner.max_model_len == 256 - 8 * 4
    assert len(answer(runner)) == 3
    shards.end()
