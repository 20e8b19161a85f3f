"""A prefix found in the cache changes nothing but the time.

The tokens are the same as computed anew, and the log-probabilities too, bit for bit; in layers with a window
as in those without.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny_models import build_tiny_model

from triolet.args import EngineArgs
from triolet.core.engine_core import EngineCore, build_core
from triolet.models.source import local_files, resolve_model
from triolet.request import Request, RequestOptions, TokenLogprobs
from triolet.runtime.runner import ModelRunner

TINY = ("llama3", "mistral", "qwen2-window", "gemma3", "gemma3-odd")
OPTIONS: dict[str, Any] = {
    "device": "cpu",
    "num_threads": 1,
    "block_size": 8,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 24,
}


@dataclass
class Answer:
    """What came out for a request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_cached_tokens: int = 0

    @property
    def content(self) -> tuple[list[int], list[TokenLogprobs]]:
        return self.token_ids, self.logprobs


@contextmanager
def running_core(path: Path | None, **options: Any) -> Iterator[EngineCore]:
    """A core with a model of its own; the default one if ``path`` is None."""
    files = resolve_model("smollm2-135m-instruct") if path is None else local_files(path)
    args = EngineArgs(**OPTIONS | options)
    core = build_core(ModelRunner.load(files, args, lambda phase: None), args)
    try:
        yield core
    finally:
        core.close()


def answers(core: EngineCore, requests: list[Request]) -> list[Answer]:
    """The answers to requests that come together."""
    found = {request.request_id: Answer() for request in requests}
    for request in requests:
        core.add(request)
    while core.has_unfinished:
        for output in core.step():
            assert output.error is None
            answer = found[output.request_id]
            answer.token_ids += output.token_ids
            answer.logprobs += output.logprobs or ()
            answer.num_cached_tokens = output.num_cached_tokens
        core.check_integrity()
    return list(found.values())


def answer(core: EngineCore, request: Request) -> Answer:
    (only,) = answers(core, [request])
    return only


def request(prompt: list[int], request_id: int = 0, *, max_tokens: int = 24, **params: Any) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        max_tokens=max_tokens,
        seed=request_id,
        num_logprobs=2,
        **params,
    )


def random_prompt(length: int, seed: int = 1, vocab_size: int = 100) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab_size, (length,), generator=generator).tolist()


@pytest.fixture(scope="module", params=TINY)
def tiny_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prefix") / str(request.param)
    build_tiny_model(request.param).save_pretrained(path)
    return path


@pytest.mark.parametrize("num_prompt_tokens", [71, 72])
def test_warm_is_cold_bit_for_bit(tiny_path: Path, num_prompt_tokens: int) -> None:
    prompt = random_prompt(num_prompt_tokens)
    with running_core(tiny_path, enable_prefix_caching=False) as core:
        expected = answer(core, request(prompt))
        assert answer(core, request(prompt)).num_cached_tokens == 0
    with running_core(tiny_path) as core:
        cold, warm = answer(core, request(prompt)), answer(core, request(prompt))
    assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, 64)
    assert cold.content == warm.content == expected.content


def test_the_next_turn_finds_what_was_generated(tiny_path: Path) -> None:
    prompt = random_prompt(40)
    with running_core(tiny_path) as core:
        first = answer(core, request(prompt))
        turn = [*prompt, *first.token_ids, *random_prompt(10, seed=2)]
        warm = answer(core, request(turn))
        assert warm.num_cached_tokens == (40 + 24 - 1) // 8 * 8
        cold = answer(core, request(turn, options=RequestOptions(cache_salt="other")))
    assert cold.num_cached_tokens == 0
    assert warm.content == cold.content


def test_requests_that_come_together_share_what_they_have_in_common(tiny_path: Path) -> None:
    prompt = random_prompt(44)
    requests = [
        request([*prompt, *random_prompt(index, seed=index)], index, temperature=0.8) for index in range(4)
    ]
    with running_core(tiny_path, enable_prefix_caching=False) as core:
        alone = [answer(core, each) for each in requests]
    with running_core(tiny_path) as core:
        together = answers(core, requests)
    assert [each.num_cached_tokens for each in together] == [0, 40, 40, 40]
    assert [each.content for each in together] == [each.content for each in alone]


def test_windows_and_eviction_leave_the_answers_of_transformers(tmp_path: Path) -> None:
    """The pools hold one sequence of full length and little more, so that blocks go from hand to hand."""
    model = build_tiny_model("gemma3")
    model.save_pretrained(tmp_path / "gemma3")
    prompts = [random_prompt(150, seed=seed) for seed in (3, 4, 3, 4)]
    options = {"dtype": "float32", "max_num_batched_tokens": 8, "num_kv_blocks": 22}
    with running_core(tmp_path / "gemma3", **options) as core:
        found = [answer(core, request(prompt)) for prompt in prompts]
    for prompt, each in zip(prompts, found, strict=True):
        assert each.token_ids == most_likely_next(model, [*prompt, *each.token_ids])[len(prompt) - 1 : -1]


def most_likely_next(model: Any, token_ids: list[int]) -> list[int]:
    """After each of the tokens, by ``transformers``."""
    with torch.inference_mode():
        found: list[int] = model(torch.tensor([token_ids])).logits[0].argmax(dim=-1).tolist()
    return found


@pytest.mark.model
def test_the_default_model_is_the_same_cold_warm_and_preempted() -> None:
    prompt = random_prompt(200, vocab_size=49_000)
    requests = [request([*prompt, index], index, max_tokens=40) for index in range(4)]
    with running_core(None, max_num_batched_tokens=256, max_model_len=512) as core:
        cold = answer(core, requests[0])
        warm = answers(core, requests)
    with running_core(None, max_model_len=256, num_kv_blocks=36, enable_prefix_caching=False) as core:
        alone = [answer(core, each) for each in requests]
    with running_core(None, max_model_len=256, num_kv_blocks=36) as core:
        crowded = answers(core, requests)
        assert core.statistics().num_preemptions > 0
    assert [each.num_cached_tokens for each in warm] == [200] * 4
    assert cold.content == warm[0].content
    assert [each.content for each in warm] == [each.content for each in alone]
    assert [each.content for each in crowded] == [each.content for each in alone]
