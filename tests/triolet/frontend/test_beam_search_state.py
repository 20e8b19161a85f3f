from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import EOS_ID
from tests.triolet.frontend.parts import input_processor, new_request

from triolet.frontend.beam_search_state import BeamSearchState
from triolet.frontend.input_processor import InputProcessor
from triolet.request import FinishReason, Request, RequestOptions, TokenLogprobs, TokenOutput
from triolet.sampling_params import BeamSearchParams

A, B, C = b"abc"


@pytest.fixture(scope="module")
def inputs(byte_model: Path) -> InputProcessor:
    return input_processor(byte_model)


def new_search(
    inputs: InputProcessor, options: RequestOptions | None = None, **fields: Any
) -> BeamSearchState:
    beams = BeamSearchParams(**{"beam_width": 2, "max_tokens": 2, **fields})
    state = new_request(inputs, beams=beams, options=options)
    assert isinstance(state, BeamSearchState)
    return state


def answer(request: Request, **logprobs: float) -> TokenOutput:
    """The likeliest tokens after a request, by letter; ``end`` is the end of sequence."""
    ids = [EOS_ID if name == "end" else ord(name) for name in logprobs]
    position = TokenLogprobs((ids[0], *ids), (-9.0, *logprobs.values()), 1)
    return TokenOutput(
        request_id=request.request_id,
        token_ids=(ids[0],),
        logprobs=(position,),
        finish_reason=FinishReason.LENGTH,
    )


def test_a_round_begins_when_every_beam_has_answered(inputs: InputProcessor) -> None:
    state = new_search(inputs)
    (first,) = state.requests
    round_two = state.update(answer(first, a=-0.5, b=-1.0, c=-3.0), 0.0).additions
    assert [request.prompt_token_ids for request in round_two] == [(1, 2, 3, A), (1, 2, 3, B)]
    assert state.live_ids == {request.request_id for request in round_two}
    assert state.take_output() is None
    assert state.update(answer(round_two[1], c=-0.1, a=-3.0), 1.0).additions == ()
    assert not state.is_finished
    assert state.update(answer(round_two[0], a=-1.0, b=-2.0), 2.0).additions == ()
    assert state.is_finished
    output = state.take_output()
    assert output is not None
    assert [item.text for item in output.outputs] == ["bc", "aa"]
    assert [item.index for item in output.outputs] == [0, 1]
    assert [item.cumulative_logprob for item in output.outputs] == pytest.approx([-1.1, -1.5])
    assert {item.finish_reason for item in output.outputs} == {FinishReason.LENGTH}
    assert (output.num_output_tokens, output.is_finished, state.outcome) == (4, True, "length")


@pytest.mark.parametrize(
    ("fields", "texts", "reason"),
    [
        ({}, ["", "a"], FinishReason.STOP),
        ({"include_stop_str_in_output": True}, ["", "a"], FinishReason.STOP),
        ({"ignore_eos": True}, ["", "a"], FinishReason.LENGTH),
    ],
)
def test_the_end_of_sequence(
    inputs: InputProcessor, fields: dict[str, Any], texts: list[str], reason: FinishReason
) -> None:
    state = new_search(inputs, max_tokens=1, **fields)
    state.update(answer(state.requests[0], end=-0.5, a=-1.0), 0.0)
    output = state.take_output()
    assert output is not None
    assert [item.text for item in output.outputs] == texts, "a special token spells nothing"
    assert output.outputs[0].token_ids == [EOS_ID]
    assert output.outputs[0].finish_reason is reason


def test_leaving_ends_every_beam_and_gives_what_there_is(inputs: InputProcessor) -> None:
    state = new_search(inputs, max_tokens=5)
    round_two = state.update(answer(state.requests[0], a=-0.5, b=-1.0), 0.0).additions
    orders = state.finish(FinishReason.ABORT)
    assert set(orders.aborts) == {request.request_id for request in round_two}
    output = state.take_output()
    assert output is not None
    assert [(item.text, item.finish_reason) for item in output.outputs] == [
        ("a", FinishReason.ABORT),
        ("b", FinishReason.ABORT),
    ]
    assert state.outcome == "abort"


def test_time_is_up_for_all_at_once(inputs: InputProcessor) -> None:
    state = new_search(inputs, max_tokens=5)
    first, second = state.update(answer(state.requests[0], a=-0.5, b=-1.0), 0.0).additions
    late = TokenOutput(request_id=first.request_id, finish_reason=FinishReason.TIMEOUT)
    assert state.update(late, 1.0).aborts == (second.request_id,)
    assert state.is_finished
    assert state.outcome == "timeout"


def test_a_deadline_holds_for_all_rounds_together(inputs: InputProcessor) -> None:
    state = new_search(inputs, RequestOptions(timeout=100.0, queue_timeout=5.0, cache_salt="x"), max_tokens=3)
    (first,) = state.requests
    assert first.options.queue_timeout == pytest.approx(5, abs=1)
    request = state.update(answer(first, a=-0.5), time.monotonic() + 60).additions[0]
    assert request.options.timeout == pytest.approx(40, abs=5)
    assert (request.options.queue_timeout, request.options.cache_salt) == (None, "x")
