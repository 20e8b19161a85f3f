from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.triolet.frontend.parts import input_processor, new_request, token_output

from triolet.errors import EngineDeadError, EngineGenerateError, InvalidRequestError
from triolet.frontend.input_processor import InputProcessor
from triolet.frontend.output_processor import OutputProcessor, ProcessedOutput
from triolet.frontend.request_state import RequestState
from triolet.request import CompletionOutput, FinishReason, TokenOutput
from triolet.statistics import FrontendStatistics


@pytest.fixture(scope="module")
def inputs(byte_model: Path) -> InputProcessor:
    return input_processor(byte_model)


@pytest.fixture
def processor() -> OutputProcessor:
    return OutputProcessor(FrontendStatistics())


def add(processor: OutputProcessor, inputs: InputProcessor, **fields: Any) -> tuple[RequestState, int]:
    state = new_request(inputs, **fields)
    processor.add(state)
    return state, state.requests[0].request_id


def first_of(item: ProcessedOutput) -> CompletionOutput:
    assert item.output is not None
    return item.output.outputs[0]


def is_end(item: ProcessedOutput) -> bool:
    return item.output is not None and item.output.is_finished


def test_outputs_go_to_their_requests(processor: OutputProcessor, inputs: InputProcessor) -> None:
    first, a = add(processor, inputs)
    second, b = add(processor, inputs)
    items = processor.process([token_output(b, b"yes"), token_output(a, b"no")], now=0.0)
    assert [(item.state, first_of(item).text) for item in items] == [(second, "yes"), (first, "no")]


def test_the_end_takes_the_request_out_and_counts_it(
    processor: OutputProcessor, inputs: InputProcessor
) -> None:
    _, a = add(processor, inputs)
    (item,) = processor.process([token_output(a, b"x", reason=FinishReason.LENGTH)], now=0.0)
    assert is_end(item)
    assert item.orders.aborts == ()
    assert processor.num_requests == 0
    assert processor.statistics.outcomes == {"length": 1}


def test_a_stop_string_has_to_be_told_to_the_core(processor: OutputProcessor, inputs: InputProcessor) -> None:
    _, a = add(processor, inputs, stop="b")
    (item,) = processor.process([token_output(a, b"abc")], now=0.0)
    assert item.orders.aborts == (a,)
    assert processor.num_requests == 0
    assert processor.statistics.outcomes == {"stop": 1}


def test_but_not_where_the_core_ended_it_in_the_same_step(
    processor: OutputProcessor, inputs: InputProcessor
) -> None:
    _, a = add(processor, inputs, stop="b")
    (item,) = processor.process([token_output(a, b"ab", reason=FinishReason.LENGTH)], now=0.0)
    assert item.orders.aborts == ()
    assert processor.statistics.outcomes == {"stop": 1}


def test_what_comes_for_a_request_that_is_gone_is_dropped(
    processor: OutputProcessor, inputs: InputProcessor
) -> None:
    state, a = add(processor, inputs)
    assert processor.abort(state, now=0.0) is not None
    assert processor.abort(state, now=0.0) is None
    assert processor.process([token_output(a, b"late"), token_output(999, b"?")], now=0.0) == []
    assert processor.statistics.outcomes == {"abort": 1}
    assert processor.statistics.num_generated_tokens == 0


def test_final_only_gives_one_output(processor: OutputProcessor, inputs: InputProcessor) -> None:
    _, a = add(processor, inputs, output_kind="final_only")
    assert processor.process([token_output(a, b"ab")], now=0.0) == []
    (item,) = processor.process([token_output(a, b"c", reason=FinishReason.LENGTH)], now=0.0)
    assert first_of(item).text == "abc"


def test_a_failure_is_its_requests_own(processor: OutputProcessor, inputs: InputProcessor) -> None:
    _, a = add(processor, inputs)
    _, b = add(processor, inputs)
    failed = token_output(a, reason=FinishReason.ERROR, error="no luck")
    items = processor.process([failed, token_output(b, b"x")], now=0.0)
    assert isinstance(items[0].error, EngineGenerateError)
    assert items[1].error is None
    assert items[0].output is not None
    assert items[0].output.error == "the request failed in the engine: no luck"
    assert first_of(items[0]).finish_reason is FinishReason.ERROR
    assert processor.num_requests == 1
    assert processor.statistics.outcomes == {"failed": 1}


def test_the_death_of_its_engine_is_told_apart_from_a_failure_of_its_own(
    processor: OutputProcessor, inputs: InputProcessor
) -> None:
    _, core_id = add(processor, inputs)
    died = TokenOutput(
        request_id=core_id, finish_reason=FinishReason.ERROR, error="killed by SIGKILL", is_engine_dead=True
    )
    (item,) = processor.process([died], now=0.0)
    assert isinstance(item.error, EngineDeadError)
    assert "killed by SIGKILL" in item.error.message


def test_a_failure_that_its_options_are_to_blame_for_names_one(
    processor: OutputProcessor, inputs: InputProcessor
) -> None:
    _, core_id = add(processor, inputs)
    failed = token_output(core_id, reason=FinishReason.ERROR, error="no luck", error_param="seed")
    (item,) = processor.process([failed], now=0.0)
    assert isinstance(item.error, InvalidRequestError)
    assert (item.error.message, item.error.param) == ("no luck", "seed")


def test_all_can_be_ended_or_failed_at_once(processor: OutputProcessor, inputs: InputProcessor) -> None:
    for _ in range(2):
        add(processor, inputs)
    reasons = [first_of(item).finish_reason for item in processor.abort_all(now=0.0)]
    assert reasons == [FinishReason.ABORT] * 2
    for _ in range(3):
        add(processor, inputs)
    errors = [item.error for item in processor.fail_all(lambda: EngineDeadError("dead"), now=0.0)]
    assert list(map(str, errors)) == ["dead"] * 3
    assert len(set(map(id, errors))) == 3, "each has its own"
    assert processor.num_requests == 0
    assert processor.statistics.outcomes == {"abort": 2, "failed": 3}


def test_a_refused_request_leaves_no_trace(processor: OutputProcessor, inputs: InputProcessor) -> None:
    state, _ = add(processor, inputs)
    processor.discard(state)
    processor.discard(state)
    assert processor.num_requests == 0
    assert processor.statistics == FrontendStatistics()


def test_times(processor: OutputProcessor, inputs: InputProcessor) -> None:
    state, a = add(processor, inputs)
    for seconds in (1.0, 1.5, 2.5):
        processor.process([token_output(a, b"x")], now=state.head.arrived + seconds)
    processor.process([token_output(a, reason=FinishReason.LENGTH)], now=state.head.arrived + 3.0)
    statistics = processor.statistics
    assert statistics.time_to_first_token.total == pytest.approx(1.0)
    assert statistics.inter_token_latency.total == pytest.approx(1.5)
    assert sum(statistics.inter_token_latency.counts) == 2
    assert statistics.request_latency.total == pytest.approx(3.0)
    assert (statistics.num_prompt_tokens, statistics.num_generated_tokens) == (3, 3)


def test_outputs_of_one_chunk_are_handed_out_as_one(
    processor: OutputProcessor, inputs: InputProcessor
) -> None:
    state, a = add(processor, inputs, n=2, output_kind="delta")
    b = state.requests[1].request_id
    (item,) = processor.process(
        [token_output(a, b"x"), token_output(b, b"y"), token_output(a, b"z")], now=0.0
    )
    assert item.output is not None
    assert [(part.index, part.text) for part in item.output.outputs] == [(0, "xz"), (1, "y")]


def test_one_that_fails_ends_its_siblings(processor: OutputProcessor, inputs: InputProcessor) -> None:
    state, a = add(processor, inputs, n=3)
    ids = [request.request_id for request in state.requests]
    items = processor.process(
        [token_output(a, b"x"), token_output(ids[1], reason=FinishReason.ERROR, error="no luck")], now=0.0
    )
    assert [is_end(item) for item in items] == [False, True], "what there was comes first"
    assert set(items[1].orders.aborts) >= {ids[0], ids[2]}
    assert processor.process([token_output(ids[2], b"late")], now=0.0) == []
    assert (processor.num_requests, processor.statistics.outcomes) == (0, {"failed": 1})


def test_a_criterion_that_fails_ends_its_own_request(
    processor: OutputProcessor, inputs: InputProcessor
) -> None:
    _, a = add(processor, inputs, stop_criteria=(lambda ids, text: 1 / 0,))
    _, b = add(processor, inputs)
    items = processor.process([token_output(a, b"x"), token_output(b, b"y")], now=0.0)
    assert [item.error is None for item in items] == [True, False, True]
    assert items[1].orders.aborts == (a,), "the core does not know yet"
    assert items[1].error is not None
    assert items[1].error.__traceback__ is None, "its frames hold the list that holds it"


def test_times_of_siblings_are_their_own(processor: OutputProcessor, inputs: InputProcessor) -> None:
    state, a = add(processor, inputs, n=2)
    b, start = state.requests[1].request_id, state.head.arrived
    for seconds in (1.0, 3.0):
        processor.process([token_output(a, b"x"), token_output(b, b"x")], now=start + seconds)
    assert sum(processor.statistics.time_to_first_token.counts) == 1
    assert processor.statistics.inter_token_latency.total == pytest.approx(4.0)
    assert (processor.statistics.num_prompt_tokens, processor.statistics.num_generated_tokens) == (3, 4)
