"""Questions to models, the ways of asking them, and answers that can be compared bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import torch
from tests.fakes import write_byte_model
from tests.tiny_models import build_tiny_model

from triolet import Engine, SamplingParams
from triolet.llm_engine import LLMEngine
from triolet.models.source import resolve_model
from triolet.request import RequestOutput, TokenLogprobs
from triolet.sampling_params import RequestOutputKind

__all__ = [
    "CONFIGURATIONS",
    "STREAMS",
    "SUBJECTS",
    "WAYS",
    "Answer",
    "Question",
    "Session",
    "Subject",
    "alone",
    "make_questions",
]

SHARED_PREFIX = 70
SUFFIXES = (0, 3, 40)
LENGTHS = (1, 5, 30, 28, 29, 62, 80)
LONG_ANSWERS, MANY_TOKENS = (3, 4), 37  # these need two blocks more while they are under way


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, the number format of its activations and the instructions it is computed with.

    ``model``: a name of :data:`tests.tiny_models.TINY_MODELS`, or a built-in short name.
    """

    model: str
    vocab_size: int
    dtype: str
    isa: str
    kv_cache_dtype: str = "auto"

    def find(self, folder: Path) -> Path:
        """The model on disk; tiny ones are made there."""
        if self.model == "smollm2-135m-instruct":
            return resolve_model(self.model).path
        write_byte_model(folder)
        build_tiny_model(self.model).save_pretrained(folder)
        return folder


SUBJECTS: Mapping[str, Subject] = {
    "smollm2": Subject("smollm2-135m-instruct", 49152, "bfloat16", ""),
    "qwen2": Subject("qwen2", 160, "bfloat16", "avx512"),
    "gemma3": Subject("gemma3", 160, "float32", ""),
    "gemma3-codes": Subject("gemma3", 160, "bfloat16", "", "int8"),
    "gemma3-odd": Subject("gemma3-odd", 101, "bfloat16", "avx2"),
    "qwen3-moe-odd": Subject("qwen3-moe-odd", 101, "bfloat16", ""),
    "qwen3-odd": Subject("qwen3-odd", 101, "float32", "portable"),
}
"""The default model quantised, and dense ones: with biases, sliding windows,
experts, codes for keys and values, and sizes nothing divides."""

CONFIGURATIONS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "again": {},
    "two threads": {"num_threads": 2},
    "chunks of 16": {"max_num_batched_tokens": 16, "max_num_seqs": 12},
    "chunks of 7": {"max_num_batched_tokens": 7, "max_num_seqs": 3},
    "two sequences": {"max_num_seqs": 2},
    "few blocks": {"num_kv_blocks": 6},
    "no prefix cache": {"enable_prefix_caching": False},
    "large blocks": {"block_size": 64},
    "guesses": {"speculation": "ngram"},
}


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt and how to continue it."""

    prompt: tuple[int, ...]
    params: SamplingParams


@dataclass(slots=True)
class Answer:
    """Everything of an answer that could depend on its company."""

    token_ids: list[list[int]] = field(default_factory=list)
    logprobs: list[list[TokenLogprobs]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)

    def add(self, output: RequestOutput) -> None:
        """Take the news of one output, or all of a final one."""
        self.prompt_logprobs += output.prompt_logprobs or []
        for choice in output.outputs:
            while len(self.texts) <= choice.index:
                self.token_ids.append([])
                self.logprobs.append([])
                self.texts.append("")
            self.token_ids[choice.index] += choice.token_ids
            self.logprobs[choice.index] += choice.logprobs or []
            self.texts[choice.index] += choice.text


KINDS: Sequence[Mapping[str, Any]] = (
    {"temperature": 0, "logprobs": 3},
    {"temperature": 1, "seed": 1, "logprobs": 0},
    {"temperature": 0.8, "seed": 2, "top_k": 30, "top_p": 0.9, "min_p": 0.01, "logprobs": 2},
    {"temperature": 0, "repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    {"temperature": 1.2, "seed": 3, "frequency_penalty": 0.5, "logit_bias": {7: 3.0}, "logprobs": 1},
    {"temperature": 0, "prompt_logprobs": 2, "logprobs": 1},
    {"temperature": 1, "seed": 4, "n": 2, "logprobs": 1},
)
"""Ways of choosing tokens."""


def make_questions(vocab_size: int, max_tokens: int = 6) -> list[Question]:
    """Random prompts, some of which begin alike, each with another kind of sampling."""
    generator = torch.Generator().manual_seed(5)

    def draw(length: int) -> list[int]:
        return torch.randint(vocab_size, (length,), generator=generator).tolist()

    prefix = draw(SHARED_PREFIX)
    prompts = [draw(length) for length in LENGTHS] + [prefix + draw(length) for length in SUFFIXES]
    return [
        Question(
            tuple(prompt),
            make_params(KINDS[index % len(KINDS)], MANY_TOKENS if index in LONG_ANSWERS else max_tokens),
        )
        for index, prompt in enumerate(prompts)
    ]


def make_params(kind: Mapping[str, Any], max_tokens: int) -> SamplingParams:
    return SamplingParams(**kind, max_tokens=max_tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA)


class Session:
    """Requests of a synchronous engine, and the answers that have come so far."""

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine
        self.answers: dict[str, Answer] = {}
        self._ids = count()

    def ask(self, question: Question) -> str:
        request_id = str(next(self._ids))
        self.answers[request_id] = Answer()
        self.engine.add_request(request_id, question.prompt, question.params)
        return request_id

    def step(self, num_steps: int = 1) -> None:
        for _ in range(num_steps):
            for output in self.engine.step():
                self.answers[output.request_id].add(output)

    def finish(self, ids: Iterable[str]) -> list[Answer]:
        """Step to the end of all requests; → answers in the order of ``ids``."""
        while self.engine.has_unfinished_requests():
            self.step()
        return [self.answers[request_id] for request_id in ids]


def alone(session: Session, questions: Sequence[Question]) -> list[Answer]:
    return [session.finish([session.ask(question)])[0] for question in questions]


def together(session: Session, questions: Sequence[Question]) -> list[Answer]:
    return session.finish([session.ask(question) for question in questions])


def joining(session: Session, questions: Sequence[Question]) -> list[Answer]:
    """Each a few steps after the one before."""
    ids = []
    for question in questions:
        ids.append(session.ask(question))
        session.step(2)
    return session.finish(ids)


def crowded(session: Session, questions: Sequence[Question]) -> list[Answer]:
    """Between strangers, of which some leave early."""
    strangers = make_questions(100, max_tokens=9)[::-1]
    ids, leaving = [], []
    for index, question in enumerate(questions):
        stranger = strangers[index % len(strangers)]
        leaving.append(session.ask(Question(stranger.prompt[: 20 + index], stranger.params)))
        ids.append(session.ask(question))
    session.step(5)
    for request_id in leaving[::2]:
        session.engine.abort_request(request_id)
    return session.finish(ids)


def doubled(session: Session, questions: Sequence[Question]) -> list[Answer]:
    """Each beside itself; both must say the same."""
    answers = together(session, [question for question in questions for _ in range(2)])
    assert answers[::2] == answers[1::2]
    return answers[::2]


WAYS: Mapping[str, Callable[[Session, Sequence[Question]], list[Answer]]] = {
    way.__name__: way for way in (together, joining, crowded, doubled)
}


async def stream_all(engine: Engine, questions: Sequence[Question]) -> list[Answer]:
    """All at once, each output as it comes."""
    answers = [Answer() for _ in questions]

    async def follow(question: Question, answer: Answer) -> None:
        async for output in engine.generate(question.prompt, question.params):
            answer.add(output)

    async with anyio.create_task_group() as task_group:
        for question, answer in zip(questions, answers, strict=True):
            task_group.start_soon(follow, question, answer)
    return answers


async def whole_answers(engine: Engine, questions: Sequence[Question]) -> list[Answer]:
    """All at once, each in one piece."""
    whole = [
        Question(question.prompt, question.params.replace(output_kind=RequestOutputKind.FINAL_ONLY))
        for question in questions
    ]
    return await stream_all(engine, whole)


async def one_by_one(engine: Engine, questions: Sequence[Question]) -> list[Answer]:
    return [(await stream_all(engine, [question]))[0] for question in questions]


async def left_early(engine: Engine, questions: Sequence[Question]) -> list[Answer]:
    """Beside callers who go after their first token."""

    async def look_in(question: Question) -> None:
        async with await engine.submit(question.prompt[::-1], question.params) as stream:
            await anext(aiter(stream))

    async with anyio.create_task_group() as task_group:
        for question in questions:
            task_group.start_soon(look_in, question)
        answers = await stream_all(engine, questions)
    return answers


STREAMS: Mapping[str, Callable[[Engine, Sequence[Question]], Any]] = {
    way.__name__: way for way in (stream_all, whole_answers, one_by_one, left_early)
}
