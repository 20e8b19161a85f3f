from __future__ import annotations

from pathlib import Path

import pytest
from tests.triolet.frontend.parts import input_processor, token_output

from triolet.frontend.input_processor import InputProcessor
from triolet.frontend.output_processor import FrontendStatistics, OutputProcessor
from triolet.frontend.request_state import RequestState
from triolet.request import FinishReason
from triolet.sampling_params import SamplingParams


@pytest.fixture(scope="module")
def inputs(byte_model: Path) -> InputProcessor:
    return input_processor(byte_model)


@pytest.fixture
def processor() -> OutputProcessor:
    return OutputProcessor(FrontendStatistics())


def add(processor: OutputProcessor, inputs: InputProcessor, **fields: object) -> tuple[RequestState, int]:
    state = inputs.process((1, 2, 3), SamplingParams(**fields))  # type: ignore[arg-type]
    processor.add(state)
    return state, state.request.request_id


def test_outputs_go_to_their_requests(processor: OutputProcessor, inputs: InputProcessor) -> None:
    first, a = add(processor, inputs)
    second, b = add(processor, inputs)
    items = processor.process([token_output(b, b"yes"), token_output(a, b"no")], now=0.0)
    assert [(item.state, item.output.outputs[0].text) for item in items] == [(second, "yes"), (first, "no")]


def test_the_end_takes_the_request_out_and_counts_it(
    processor: OutputProcessor, inputs: InputProcessor
) -> None:
    _, a = add(processor, inputs)
    (item,) = processor.process([token_output(a, b"x", reason=FinishReason.LENGTH)], now=0.0)
    assert item.output.is_finished
    assert not item.is_stopped_here
    assert processor.num_requests == 0
    assert processor.statistics.outcomes == {"length": 1}


def test_a_stop_string_has_to_be_told_to_the_core(processor: OutputProcessor, inputs: InputProcessor) -> None:
    _, a = add(processor, inputs, stop="b")
    (item,) = processor.process([token_output(a, b"abc")], now=0.0)
    assert item.is_stopped_here
    assert processor.num_requests == 0
    assert processor.statistics.outcomes == {"stop": 1}


def test_but_not_where_the_core_ended_it_in_the_same_step(
    processor: OutputProcessor, inputs: InputProcessor
) -> None:
    _, a = add(processor, inputs, stop="b")
    (item,) = processor.process([token_output(a, b"ab", reason=FinishReason.LENGTH)], now=0.0)
    assert not item.is_stopped_here
    assert processor.statistics.outcomes == {"stop": 1}


def test_what_comes_for_a_request_that_is_gone_is_dropped(
    processor: OutputProcessor, inputs: InputProcessor
) -> None:
    _, a = add(processor, inputs)
    assert processor.abort(a, now=0.0) is not None
    assert processor.abort(a, now=0.0) is None
    assert processor.process([token_output(a, b"late"), token_output(999, b"?")], now=0.0) == []
    assert processor.statistics.outcomes == {"abort": 1}
    assert processor.statistics.num_generated_tokens == 0


def test_final_only_gives_one_output(processor: OutputProcessor, inputs: InputProcessor) -> None:
    _, a = add(processor, inputs, output_kind="final_only")
    assert processor.process([token_output(a, b"ab")], now=0.0) == []
    (item,) = processor.process([token_output(a, b"c", reason=FinishReason.LENGTH)], now=0.0)
    assert item.output.outputs[0].text == "abc"


def test_a_failure_is_its_requests_own(processor: OutputProcessor, inputs: InputProcessor) -> None:
    _, a = add(processor, inputs)
    _, b = add(processor, inputs)
    failed = token_output(a, reason=FinishReason.ERROR, error="no luck")
    items = processor.process([failed, token_output(b, b"x")], now=0.0)
    assert [item.error for item in items] == ["no luck", None]
    assert (items[0].output.error, items[0].output.outputs[0].finish_reason) == (
        "no luck",
        FinishReason.ERROR,
    )
    assert processor.num_requests == 1
    assert processor.statistics.outcomes == {"failed": 1}


def test_all_can_be_ended_or_failed_at_once(processor: OutputProcessor, inputs: InputProcessor) -> None:
    for _ in range(2):
        add(processor, inputs)
    reasons = [item.output.outputs[0].finish_reason for item in processor.abort_all(now=0.0)]
    assert reasons == [FinishReason.ABORT] * 2
    for _ in range(3):
        add(processor, inputs)
    assert [item.error for item in processor.fail_all("dead", now=0.0)] == ["dead"] * 3
    assert processor.num_requests == 0
    assert processor.statistics.outcomes == {"abort": 2, "failed": 3}


def test_a_refused_request_leaves_no_trace(processor: OutputProcessor, inputs: InputProcessor) -> None:
    _, a = add(processor, inputs)
    processor.discard(a)
    processor.discard(a)
    assert processor.num_requests == 0
    assert processor.statistics == FrontendStatistics()


def test_times(processor: OutputProcessor, inputs: InputProcessor) -> None:
    state, a = add(processor, inputs)
    for seconds in (1.0, 1.5, 2.5):
        processor.process([token_output(a, b"x")], now=state.arrived + seconds)
    processor.process([token_output(a, reason=FinishReason.LENGTH)], now=state.arrived + 3.0)
    statistics = processor.statistics
    assert statistics.time_to_first_token.total == pytest.approx(1.0)
    assert statistics.inter_token_latency.total == pytest.approx(1.5)
    assert sum(statistics.inter_token_latency.counts) == 2
    assert statistics.request_latency.total == pytest.approx(3.0)
    assert (statistics.num_prompt_tokens, statistics.num_generated_tokens) == (3, 3)
