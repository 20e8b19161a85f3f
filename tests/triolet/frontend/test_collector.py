from __future__ import annotations

from itertools import pairwise

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.triolet.frontend.parts import logprobs_of

from triolet.errors import EngineGenerateError
from triolet.frontend.collector import LOGPROB_BYTES, RequestOutputCollector
from triolet.request import CompletionOutput, RequestOutput, RequestTimings
from triolet.sampling_params import RequestOutputKind

pytestmark = pytest.mark.anyio

ANSWER = b"the answer, spoken slowly"


def output(
    token_ids: bytes, num_output_tokens: int, *, has_logprobs: bool = True, is_finished: bool = False
) -> RequestOutput:
    completion = CompletionOutput(
        text=token_ids.decode(),
        token_ids=list(token_ids),
        logprobs=[logprobs_of(token_id) for token_id in token_ids] if has_logprobs else None,
        cumulative_logprob=float(num_output_tokens) if has_logprobs else None,
    )
    return RequestOutput(
        request_id="1",
        prompt=None,
        prompt_token_ids=(1,),
        outputs=[completion],
        is_finished=is_finished,
        seed=0,
        num_output_tokens=num_output_tokens,
        timings=RequestTimings(arrived=0.0),
    )


async def pause(num_turns: int) -> None:
    for _ in range(num_turns):
        await anyio.lowlevel.checkpoint()


async def transfer(
    cuts: list[int], produce: list[int], consume: list[int], *, has_logprobs: bool
) -> list[RequestOutput]:
    """Deltas from a producer to a consumer that each take their time; what the consumer got."""
    collector = RequestOutputCollector(RequestOutputKind.DELTA)
    borders = [0, *sorted(cuts), len(ANSWER)]
    received: list[RequestOutput] = []

    async def produce_all() -> None:
        for index, (begin, end) in enumerate(pairwise(borders)):
            await pause(produce[index % len(produce)])
            is_finished = index == len(borders) - 2
            collector.put(output(ANSWER[begin:end], end, has_logprobs=has_logprobs, is_finished=is_finished))

    async with anyio.create_task_group() as task_group:
        task_group.start_soon(produce_all)
        while not (received and received[-1].is_finished):
            await pause(consume[len(received) % len(consume)])
            received.append(await collector.get())
    return received


turns = st.lists(st.integers(0, 4), min_size=1, max_size=8)


@settings(max_examples=60)
@given(st.lists(st.integers(1, len(ANSWER) - 1), max_size=12), turns, turns, st.booleans())
async def test_nothing_is_lost_or_reordered_at_any_speed(
    cuts: list[int], produce: list[int], consume: list[int], has_logprobs: bool
) -> None:
    received = await transfer(cuts, produce, consume, has_logprobs=has_logprobs)
    completions = [item.outputs[0] for item in received]
    assert "".join(completion.text for completion in completions) == ANSWER.decode()
    assert [t for completion in completions for t in completion.token_ids] == list(ANSWER)
    so_far = 0
    for item, completion in zip(received, completions, strict=True):
        so_far += len(completion.token_ids)
        assert item.num_output_tokens == so_far
        if has_logprobs:
            assert completion.logprobs == [logprobs_of(token_id) for token_id in completion.token_ids]
            assert completion.cumulative_logprob == so_far
        else:
            assert completion.logprobs is None


async def test_a_consumer_that_comes_late_finds_one_output() -> None:
    received = await transfer([3, 9, 20], produce=[0], consume=[10], has_logprobs=True)
    assert [item.outputs[0].text for item in received] == [ANSWER.decode()]


@pytest.mark.parametrize("kind", [RequestOutputKind.CUMULATIVE, RequestOutputKind.FINAL_ONLY])
async def test_a_whole_output_takes_the_place_of_the_one_before(kind: RequestOutputKind) -> None:
    collector = RequestOutputCollector(kind)
    collector.put(output(b"one", 3))
    collector.put(output(b"one two", 7))
    assert (await collector.get()).outputs[0].text == "one two"


async def test_several_choices_are_merged_each_with_its_own() -> None:
    collector = RequestOutputCollector(RequestOutputKind.DELTA)
    for index, text in ((1, b"b"), (0, b"a"), (1, b"B")):
        delta = output(text, 1)
        delta.outputs[0].index = index
        collector.put(delta)
    merged = (await collector.get()).outputs
    assert [(completion.index, completion.text) for completion in merged] == [(0, "a"), (1, "bB")]


async def test_a_whole_output_takes_the_place_of_its_own_choice_alone() -> None:
    collector = RequestOutputCollector(RequestOutputKind.CUMULATIVE)
    for index, text in ((1, b"b"), (0, b"a"), (1, b"bB")):
        whole = output(text, 1)
        whole.outputs[0].index = index
        collector.put(whole)
    merged = (await collector.get()).outputs
    assert [(completion.index, completion.text) for completion in merged] == [(0, "a"), (1, "bB")]


@pytest.mark.parametrize("kind", RequestOutputKind)
async def test_what_comes_once_is_not_lost(kind: RequestOutputKind) -> None:
    collector = RequestOutputCollector(kind)
    first = output(b"a", 1)
    first.prompt_logprobs = [None]
    collector.put(first)
    collector.put(output(b"b", 2))
    assert (await collector.get()).prompt_logprobs == [None]


async def test_it_tells_how_much_is_unread() -> None:
    collector = RequestOutputCollector(RequestOutputKind.DELTA)
    assert collector.num_unread_bytes == 0
    assert not collector.put(output(b"one", 3, has_logprobs=False))
    assert collector.put(output(b" two", 7, has_logprobs=False))
    assert collector.num_unread_bytes == 7
    await collector.get()
    collector.put(output(b"one", 3))
    assert collector.num_unread_bytes == 3 + 3 * LOGPROB_BYTES


async def test_an_error_comes_after_the_outputs_before_it() -> None:
    collector = RequestOutputCollector(RequestOutputKind.DELTA)
    collector.put(output(b"one", 3))
    collector.put_error(EngineGenerateError("bad luck"))
    assert (await collector.get()).outputs[0].text == "one"
    with pytest.raises(EngineGenerateError, match="bad luck"):
        await collector.get()


async def test_an_error_wakes_a_waiting_consumer() -> None:
    collector = RequestOutputCollector(RequestOutputKind.DELTA)

    async def expect_error() -> None:
        with pytest.raises(EngineGenerateError):
            await collector.get()

    async with anyio.create_task_group() as task_group:
        task_group.start_soon(expect_error)
        await anyio.wait_all_tasks_blocked()
        collector.put_error(EngineGenerateError("bad luck"))


async def test_waiting_takes_nothing_and_neither_does_being_cancelled() -> None:
    collector = RequestOutputCollector(RequestOutputKind.DELTA)
    with anyio.move_on_after(0):
        await collector.get()
    collector.put(output(b"one", 3))
    await collector.wait_ready()
    await collector.wait_ready()
    assert (await collector.get()).outputs[0].text == "one"
