"""Reading one stream or several as one: order, time limits, failures, and letting go."""

from __future__ import annotations

import gc
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import serving

from triolet.errors import EngineDeadError, EngineGenerateError, OverloadedError
from triolet.request import FinishReason, TokenLogprobs
from triolet.sampling_params import RequestOutputKind, SamplingParams
from triolet.statistics import EngineState
from triolet.text.parsed_text import ToolCallDelta
from triolet.web.errors import RequestAbortedError
from triolet.web.generation import Delta, FoldedChoice, FoldedChoices, Generation, require_serving, submit_all

pytestmark = pytest.mark.anyio
PARAMS = SamplingParams(max_tokens=100, output_kind=RequestOutputKind.DELTA)


def ready_engine(reply: str = "abc", hold_at: int | None = None) -> FakeEngine:
    engine = FakeEngine(reply=reply, hold_at=hold_at)
    engine.state = EngineState.READY
    return engine


async def start(engine: FakeEngine, *prompts: str) -> Generation:
    return await submit_all([partial(engine.submit, prompt, PARAMS) for prompt in prompts])


async def read_all(generation: Generation) -> list[Delta]:
    deltas: list[Delta] = []
    while not generation.is_finished:
        deltas += await generation.next()
    return deltas


async def test_the_deltas_of_one_stream_add_up() -> None:
    deltas = await read_all(await start(ready_engine("héllo"), "hi"))
    assert "".join(delta.text for delta in deltas) == "héllo"
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == [FinishReason.STOP]


async def test_several_streams_are_read_side_by_side() -> None:
    generation = await start(ready_engine(), "a", "bb", "ccc")
    deltas = await read_all(generation)
    texts = {i: "".join(delta.text for delta in deltas if delta.index == i) for i in range(3)}
    assert texts == {0: "abc", 1: "abc", 2: "abc"}
    assert {delta.index for delta in deltas[:3]} == {0, 1, 2}
    usage = generation.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (6, 9)


@pytest.mark.parametrize("prompts", [("a",), ("a", "b")])
async def test_no_news_within_the_time_is_no_deltas_and_loses_nothing(prompts: tuple[str, ...]) -> None:
    engine = ready_engine(hold_at=0)
    generation = await start(engine, *prompts)
    assert await generation.next(0) == []
    assert engine.num_open == len(prompts)
    engine.release()
    assert len(await read_all(generation)) == 3 * len(prompts)


async def test_a_failure_comes_after_what_was_produced_and_ends_the_others() -> None:
    engine = ready_engine(hold_at=1)
    generation = await start(engine, "a", "b")
    first = await generation.next() + await generation.next(anyio.current_time() + 0.05)
    assert [delta.text for delta in first] == ["a", "a"]
    engine.fail_all(EngineGenerateError("lost"))
    with pytest.raises(EngineGenerateError, match="lost"):
        await generation.next()
    assert engine.num_open == 0


async def test_an_abort_is_an_end_like_others_with_what_there_is() -> None:
    engine = ready_engine(hold_at=1)
    generation = await start(engine, "a")
    await generation.next()
    await engine.abort(generation.request_ids)
    (delta,) = await generation.next()
    assert (delta.text, delta.finish_reason) == ("", FinishReason.ABORT)
    assert generation.is_finished
    assert generation.usage.completion_tokens == 1


async def test_an_abort_of_a_prompt_alone_does_not_look_like_its_end() -> None:
    engine = ready_engine(hold_at=0)
    submit = partial(engine.submit, "a", PARAMS)
    generation = await submit_all([submit], is_prompt_only=True)
    await engine.abort(generation.request_ids)
    (delta,) = await generation.next()
    assert delta.finish_reason is FinishReason.ABORT


async def test_an_abort_by_a_server_that_leaves_is_an_error_and_no_finish_reason() -> None:
    engine = ready_engine(hold_at=1)
    submit = partial(engine.submit, "a", PARAMS)
    generation = await submit_all([submit], is_leaving=lambda: True)
    await generation.next()
    engine.abort_all("shutdown")
    (delta,) = await generation.next()
    assert delta.finish_reason is None
    with pytest.raises(RequestAbortedError):
        await generation.next()


async def test_a_stream_that_ends_without_a_reason_is_an_error() -> None:
    engine = ready_engine(hold_at=0)
    stream = await engine.submit("a", PARAMS)
    stream.abort()
    with pytest.raises(EngineGenerateError, match="without saying why"):
        await Generation([stream]).next()


async def test_a_refused_prompt_takes_back_the_ones_before_it() -> None:
    engine = ready_engine(hold_at=0)

    def refuse_the_second() -> None:
        if engine.submitted:
            engine.refusal = OverloadedError("full")

    engine.submit_hook = refuse_the_second
    with pytest.raises(OverloadedError):
        await start(engine, "a", "b")
    assert engine.num_open == 0


async def test_cancelling_the_reader_leaves_the_rest_to_abort() -> None:
    engine = ready_engine(hold_at=0)
    generation = await start(engine, "a", "b")
    with anyio.move_on_after(0):
        await generation.next()
    generation.abort()
    generation.abort()
    assert engine.num_open == 0
    assert len(engine.aborted) == 2


async def test_a_generation_that_is_let_go_aborts() -> None:
    engine = ready_engine(hold_at=0)
    generation = await start(engine, "a")
    del generation
    gc.collect()
    await checkpoint()
    assert engine.num_open == 0


async def test_only_an_engine_that_serves_is_asked() -> None:
    engine = FakeEngine()
    with pytest.raises(OverloadedError, match=r"loading weights, 2 s") as caught:
        require_serving(engine)
    assert caught.value.status == 503
    engine.die("out of memory")
    with pytest.raises(EngineDeadError, match="out of memory"):
        require_serving(engine)
    require_serving(ready_engine())


def test_folding_joins_texts_and_logprobs() -> None:
    fold = FoldedChoice(0)
    for text, reason in (("a", None), ("b", FinishReason.LENGTH)):
        fold.add(Delta(index=0, text=text, logprobs=None, finish_reason=reason, stop_reason=None, seed=1))
    assert fold.text == "ab"
    assert fold.logprobs is None
    assert fold.last is not None
    assert fold.last.finish_reason is FinishReason.LENGTH


def test_choices_are_folded_apart_and_come_in_order() -> None:
    choices = FoldedChoices()
    for index, text in ((1, "c"), (0, "a"), (1, "d"), (0, "b")):
        choices.add(
            Delta(index=index, text=text, logprobs=None, finish_reason=None, stop_reason=None, seed=1)
        )
    assert [(choice.index, choice.text) for choice in choices.in_order()] == [(0, "ab"), (1, "cd")]


def test_what_is_folded_is_not_copied_again_with_each_delta() -> None:
    fold = FoldedChoice(0)
    given = [[TokenLogprobs((i,), (-1.0,), 1)] for i in range(3)]
    known = None
    for logprobs in given:
        fold.add(Delta(index=0, text="a", logprobs=logprobs, finish_reason=None, stop_reason=None, seed=1))
        known = known or fold.logprobs
    assert fold.logprobs is known
    assert fold.logprobs == [item for logprobs in given for item in logprobs]
    assert [len(logprobs) for logprobs in given] == [1, 1, 1]


def test_words_and_calls_are_told_in_their_order() -> None:
    calls = (
        ToolCallDelta(0, arguments="}"),
        ToolCallDelta(1, "c1", "f", content_offset=2),
        ToolCallDelta(2, "c2", "g", content_offset=2),
    )
    plain = Delta(index=0, text="abc", logprobs=None, finish_reason=None, stop_reason=None, seed=1)
    assert list(plain.parts()) == ["abc"]
    assert list(replace(plain, tool_calls=calls).parts()) == [calls[0], "ab", *calls[1:], "c"]
    assert list(replace(plain, text="").parts()) == []


async def test_nothing_of_the_model_is_asked_for_while_it_loads(anyio_backend_name: str) -> None:
    """Every route that needs it answers 503: it has neither tokenizer nor template yet."""
    engine = FakeEngine(is_loading_held=True)
    del engine.tokenizer, engine.chat_template
    messages = [{"role": "user", "content": "hi"}]
    function = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    bodies: dict[str, list[Any]] = {
        "/v1/completions": [
            {"prompt": "hi"},
            {"prompt": "hi", "suffix": "end"},
            {"prompt": "hi", "echo": True},
        ],
        "/v1/chat/completions": [{"messages": messages}, {"messages": messages, "tools": [function]}],
        "/v1/chat/completions/render": [{"messages": messages}],
        "/v1/responses": [{"input": "hi"}, {"input": "hi", "truncation": "auto"}],
        "/v1/responses/input_tokens": [{"input": "hi"}],
        "/v1/messages": [{"messages": messages, "max_tokens": 1}],
        "/v1/messages/count_tokens": [{"messages": messages}],
        "/tokenize": [{"prompt": "hi"}, {"messages": messages}],
        "/detokenize": [{"tokens": [1]}],
    }
    async with serving(engine, anyio_backend_name, is_ready=False) as running:
        for path, some in bodies.items():
            for body in some:
                answer = await running.client.post(path, json=body)
                assert (answer.status_code, "Retry-After" in answer.headers) == (503, True), (
                    path,
                    answer.text,
                )
        engine.finish_loading()
