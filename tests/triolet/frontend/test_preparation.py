"""Where requests are prepared: on the loop, or in a thread that nobody has to wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from tests.triolet.frontend.parts import input_processor

from triolet.errors import InvalidRequestError
from triolet.frontend.input_processor import InputProcessor
from triolet.frontend.preparation import (
    LONG_PROMPT,
    MAX_LONG,
    Preparation,
    beside_the_loop,
    written_length,
)
from triolet.frontend.request_state import RequestState
from triolet.sampling_params import SamplingParams, StructuredOutputs

pytestmark = pytest.mark.anyio

CONSTRAINED = SamplingParams(structured_outputs=StructuredOutputs(regex="a+"))


@pytest.fixture
def inputs(byte_model: Path) -> InputProcessor:
    return input_processor(byte_model)


def noting(threads: list[int], work: Callable[[], object] = lambda: None) -> Any:
    def prepare(inputs: InputProcessor) -> RequestState:
        threads.append(threading.get_ident())
        work()
        return cast(RequestState, inputs)

    return prepare


@pytest.mark.parametrize(
    ("params", "length", "is_here"),
    [
        (SamplingParams(), LONG_PROMPT, True),
        (SamplingParams(), LONG_PROMPT + 1, False),
        (CONSTRAINED, 1, False),
    ],
)
async def test_what_takes_long_is_done_in_a_thread(
    params: SamplingParams, length: int, is_here: bool, inputs: InputProcessor
) -> None:
    threads: list[int] = []
    assert await Preparation().run(noting(threads), inputs, params, length) is cast(RequestState, inputs)
    assert (threads == [threading.get_ident()]) == is_here


def test_what_is_written_is_counted_until_it_is_long() -> None:
    assert written_length("abc", [1, None], {"k": ("v",)}) == 4 + 3 + (1 + 2 + 1 + 2)
    endless: list[Any] = ["x"]
    endless.append(endless)
    for value in ("x" * LONG_PROMPT, [0] * LONG_PROMPT, {"a": {"b": "x" * LONG_PROMPT}}, endless):
        assert written_length(value) > LONG_PROMPT


async def test_a_known_grammar_needs_no_thread(inputs: InputProcessor) -> None:
    inputs.prepare([1], CONSTRAINED)
    threads: list[int] = []
    await Preparation().run(noting(threads), inputs, CONSTRAINED, 1)
    assert threads == [threading.get_ident()]


async def test_grammars_are_compiled_one_at_a_time(inputs: InputProcessor) -> None:
    preparation, running, most = Preparation(), 0, 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        with lock:
            running -= 1

    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(preparation.run, noting([], work), inputs, CONSTRAINED, 1)
    assert most == 1


async def test_few_long_prompts_are_worked_on_at_a_time() -> None:
    running, most = 0, 0
    lock = threading.Lock()
    is_full = threading.Barrier(MAX_LONG)  # breaks, and fails, where there are fewer

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        is_full.wait(30)
        with lock:
            running -= 1

    async with anyio.create_task_group() as group:
        for _ in range(3 * MAX_LONG):
            group.start_soon(beside_the_loop, work, LONG_PROMPT + 1)
    assert most == MAX_LONG


async def test_a_grammar_that_takes_too_long_is_refused(inputs: InputProcessor) -> None:
    may_end = threading.Event()
    try:
        with pytest.raises(InvalidRequestError, match=r"not compiled within 0\.01 s") as caught:
            await Preparation(compile_seconds=0.01).run(noting([], may_end.wait), inputs, CONSTRAINED, 1)
    finally:
        may_end.set()
    assert caught.value.param == "structured_outputs"


async def test_leaving_waits_for_no_grammar(inputs: InputProcessor) -> None:
    may_end = threading.Event()
    try:
        with anyio.move_on_after(0.01) as scope:
            await Preparation().run(noting([], may_end.wait), inputs, CONSTRAINED, 1)
        assert scope.cancelled_caught
    finally:
        may_end.set()


async def test_what_the_work_raises_comes_through(inputs: InputProcessor) -> None:
    wrong = SamplingParams(structured_outputs=StructuredOutputs(json={"not": {}}))

    def prepare(inputs: InputProcessor) -> RequestState:
        return inputs.prepare("a", wrong)

    with pytest.raises(InvalidRequestError, match="'not' cannot be enforced"):
        await Preparation().run(prepare, inputs, wrong, 1)
