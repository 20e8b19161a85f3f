from __future__ import annotations

import codecs
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import EOS_ID
from tests.triolet.frontend.parts import input_processor, logprobs_of, new_request, token_output

from triolet.frontend.input_processor import InputProcessor
from triolet.frontend.sampling_state import SamplingState
from triolet.request import FinishReason, RequestOutput, TokenLogprobs
from triolet.sampling_params import RequestOutputKind

PIECES = ["a", "b", "ab", "é", "€", "😀", " "]


@pytest.fixture(scope="module")
def inputs(byte_model: Path) -> InputProcessor:
    return input_processor(byte_model)


class Telling:
    """A state that is told what the core produces, by the index of the continuation."""

    def __init__(self, state: SamplingState) -> None:
        self.state = state
        self.ids = [request.request_id for request in state.requests]
        self.aborts: list[int] = []

    def update(
        self, token_ids: bytes | list[int] = b"", now: float = 1.0, *, index: int = 0, **fields: Any
    ) -> RequestOutput | None:
        orders = self.state.update(token_output(self.ids[index], token_ids, **fields), now)
        self.aborts += [self.ids.index(core_id) for core_id in orders.aborts]
        return self.state.take_output()

    def finish(self, reason: FinishReason, error: str | None = None) -> RequestOutput:
        orders = self.state.finish(reason, error)
        self.aborts += [self.ids.index(core_id) for core_id in orders.aborts]
        output = self.state.take_output()
        assert output is not None
        return output


def new_state(inputs: InputProcessor, **fields: Any) -> Telling:
    state = new_request(inputs, **{"max_tokens": None, **fields})
    assert isinstance(state, SamplingState)
    return Telling(state)


@dataclass(frozen=True)
class Story:
    """What the core produces for a request, step by step, and how that ends."""

    steps: tuple[bytes, ...]
    reason: FinishReason
    is_last_with_tokens: bool
    """Whether the reason comes with the last tokens, or the request is ended from outside after them."""

    @property
    def data(self) -> bytes:
        return b"".join(self.steps)


@dataclass(frozen=True)
class Answer:
    """What a caller has of a request in the end."""

    text: str
    token_ids: list[int]
    reason: FinishReason
    stop_reason: str | int | None


@st.composite
def stories(draw: st.DrawFn) -> Story:
    data = "".join(draw(st.lists(st.sampled_from(PIECES), max_size=12))).encode()
    data += draw(st.binary(max_size=2))
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    steps = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]
    reason = draw(st.sampled_from([FinishReason.LENGTH, FinishReason.ABORT, FinishReason.ERROR]))
    is_last_with_tokens = reason is FinishReason.LENGTH and bool(steps)
    return Story(tuple(steps), reason, is_last_with_tokens)


stops = st.lists(st.lists(st.sampled_from(PIECES), min_size=1, max_size=3).map("".join), max_size=3)


def tell(state: Telling, story: Story, *, has_logprobs: bool = False) -> list[RequestOutput]:
    outputs = []
    for index, step in enumerate(story.steps):
        is_last = story.is_last_with_tokens and index == len(story.steps) - 1
        reason = story.reason if is_last else None
        output = state.update(step, now=float(index), has_logprobs=has_logprobs, reason=reason)
        if output is not None:
            outputs.append(output)
        if state.state.is_finished:
            return outputs
    return [*outputs, state.finish(story.reason)]


def answer_of(kind: RequestOutputKind, outputs: list[RequestOutput]) -> Answer:
    """The whole answer, from all outputs of a request."""
    completions = [output.outputs[0] for output in outputs]
    last = completions[-1]
    assert [output.is_finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert last.finish_reason is not None
    if kind is RequestOutputKind.FINAL_ONLY:
        assert len(outputs) == 1
    parts = completions if kind is RequestOutputKind.DELTA else [last]
    text = "".join(part.text for part in parts)
    token_ids = [token_id for part in parts for token_id in part.token_ids]
    return Answer(text, token_ids, last.finish_reason, last.stop_reason)


def expected(story: Story, stop: tuple[str, ...], is_included: bool) -> Answer:
    """By the plainest means: look at the text after each token."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = ""
    for index in range(len(story.data) + 1):
        is_end = index == len(story.data)
        text += decoder.decode(b"" if is_end else story.data[index : index + 1], final=is_end)
        found = [(text.find(s) + len(s), text.find(s), s) for s in stop if s in text]
        if found:
            end, begin, matched = min(found)
            cut = text[: end if is_included else begin]
            return Answer(cut, list(story.data[: index + 1]), FinishReason.STOP, matched)
    return Answer(text, list(story.data), story.reason, None)


@given(story=stories(), stop=stops.map(tuple), is_included=st.booleans())
def test_however_it_is_cut_into_steps_and_handed_out_the_answer_is_the_same(
    inputs: InputProcessor, story: Story, stop: tuple[str, ...], is_included: bool
) -> None:
    answer = expected(story, stop, is_included)
    for kind in RequestOutputKind:
        fields: dict[str, Any] = {
            "stop": stop,
            "include_stop_str_in_output": is_included,
            "output_kind": kind,
        }
        outputs = tell(new_state(inputs, **fields), story)
        assert answer_of(kind, outputs) == answer
        assert outputs[-1].num_output_tokens == len(answer.token_ids)


@given(story=stories(), stop=stops.map(tuple))
def test_what_has_been_shown_is_never_taken_back(
    inputs: InputProcessor, story: Story, stop: tuple[str, ...]
) -> None:
    texts = [output.outputs[0].text for output in tell(new_state(inputs, stop=stop), story)]
    for earlier, later in pairwise(texts):
        assert later.startswith(earlier)


@given(story=stories(), stop=stops.map(tuple))
def test_logprobs_go_with_their_tokens(inputs: InputProcessor, story: Story, stop: tuple[str, ...]) -> None:
    for kind in RequestOutputKind:
        state = new_state(inputs, stop=stop, logprobs=0, output_kind=kind)
        outputs = tell(state, story, has_logprobs=True)
        token_ids = answer_of(kind, outputs).token_ids
        for output in outputs:
            completion = output.outputs[0]
            assert completion.logprobs == [logprobs_of(token_id) for token_id in completion.token_ids]
        assert outputs[-1].outputs[0].cumulative_logprob == pytest.approx(-sum(token_ids) / 256)


class TestStopTokens:
    def finish(self, inputs: InputProcessor, token_ids: list[int], **fields: Any) -> RequestOutput:
        state = new_state(inputs, **fields)
        result = state.update(token_ids, reason=FinishReason.STOP, stop_token_id=token_ids[-1])
        assert result is not None
        return result

    def test_the_text_of_a_stop_token_is_left_out(self, inputs: InputProcessor) -> None:
        completion = self.finish(inputs, [*b"hi!"], stop_token_ids=(ord("!"),)).outputs[0]
        assert (completion.text, completion.token_ids) == ("hi", [*b"hi!"])
        assert (completion.finish_reason, completion.stop_reason) == (FinishReason.STOP, ord("!"))

    def test_or_kept_on_request(self, inputs: InputProcessor) -> None:
        fields: dict[str, Any] = {"stop_token_ids": (ord("!"),), "include_stop_str_in_output": True}
        assert self.finish(inputs, [*b"hi!"], **fields).outputs[0].text == "hi!"

    def test_end_of_sequence_is_no_reason_to_name(self, inputs: InputProcessor) -> None:
        completion = self.finish(inputs, [*b"hi", EOS_ID]).outputs[0]
        assert (completion.text, completion.stop_reason) == ("hi", None)

    def test_a_special_token_shows_where_it_is_not_to_be_skipped(self, inputs: InputProcessor) -> None:
        fields: dict[str, Any] = {"include_stop_str_in_output": True, "skip_special_tokens": False}
        assert self.finish(inputs, [*b"hi", EOS_ID], **fields).outputs[0].text == "hi</s>"

    def test_a_stop_string_before_the_stop_token_wins(self, inputs: InputProcessor) -> None:
        output = self.finish(inputs, [*b"hi!"], stop="i", stop_token_ids=(ord("!"),))
        completion = output.outputs[0]
        assert (completion.text, completion.token_ids, completion.stop_reason) == ("h", [*b"hi"], "i")


def test_a_stop_string_ends_the_request_before_the_core_knows(inputs: InputProcessor) -> None:
    state = new_state(inputs, stop="b")
    output = state.update(b"abc")
    assert output is not None
    assert output.is_finished
    assert output.outputs[0].finish_reason is FinishReason.STOP
    assert state.aborts == [0]


def test_held_back_text_comes_at_the_end(inputs: InputProcessor) -> None:
    state = new_state(inputs, stop="abc", output_kind="delta")
    first = state.update(b"xab")
    assert first is not None
    assert first.outputs[0].text == "x"
    assert state.finish(FinishReason.LENGTH).outputs[0].text == "ab"


def test_a_delta_may_be_tokens_without_text_yet(inputs: InputProcessor) -> None:
    state = new_state(inputs, output_kind="delta")
    output = state.update("€".encode()[:1])
    assert output is not None
    assert (output.outputs[0].text, len(output.outputs[0].token_ids)) == ("", 1)


def test_a_step_without_tokens_is_no_news(inputs: InputProcessor) -> None:
    assert new_state(inputs).update() is None


def test_times_and_counts(inputs: InputProcessor) -> None:
    state = new_state(inputs)
    state.update(b"a", num_cached_tokens=2, now=0.0)
    output = state.update(b"bc", now=5.0)
    assert output is not None
    assert (output.timings.first_token, output.timings.last_token) == (0.0, 5.0)
    assert (output.num_output_tokens, output.num_cached_tokens) == (3, 2)
    assert output.prompt_token_ids == (1, 2, 3)


def test_an_output_handed_out_does_not_change_later(inputs: InputProcessor) -> None:
    state = new_state(inputs)
    first = state.update(b"a")
    state.update(b"b", now=2.0)
    assert first is not None
    assert (first.outputs[0].text, first.outputs[0].token_ids) == ("a", [*b"a"])


class TestPromptProgress:
    def test_it_comes_without_a_continuation_and_is_complete_with_the_first_token(
        self, inputs: InputProcessor
    ) -> None:
        state = new_state(inputs)
        num_tokens = len(state.state.head.prompt_token_ids)
        first = state.update(num_computed_prompt_tokens=1)
        assert first is not None
        assert (first.outputs, first.num_computed_prompt_tokens, first.is_finished) == ([], 1, False)
        assert state.update(num_computed_prompt_tokens=1) is None, "it was thrown out and has caught up"
        second = state.update(b"a")
        assert second is not None
        assert second.num_computed_prompt_tokens == num_tokens

    def test_final_outputs_wait_for_the_end(self, inputs: InputProcessor) -> None:
        state = new_state(inputs, output_kind=RequestOutputKind.FINAL_ONLY)
        assert state.update(num_computed_prompt_tokens=1) is None


class TestPromptLogprobs:
    ENTRIES = tuple(TokenLogprobs((token_id,), (-1.0,), 1) for token_id in (2, 3))

    @pytest.mark.parametrize("kind", RequestOutputKind)
    def test_they_come_once_and_whole(self, inputs: InputProcessor, kind: RequestOutputKind) -> None:
        state = new_state(inputs, prompt_logprobs=0, output_kind=kind)
        assert state.update(prompt_logprobs=self.ENTRIES[:1]) is None
        outputs = [state.update(b"a", prompt_logprobs=self.ENTRIES[1:]), state.update(b"b")]
        outputs.append(state.finish(FinishReason.LENGTH))
        told = [output.prompt_logprobs for output in outputs if output and output.prompt_logprobs]
        assert told == [[None, *self.ENTRIES]]
        assert outputs[0] is None or outputs[0].prompt_logprobs is not None

    def test_there_are_none_where_the_prompt_was_never_done(self, inputs: InputProcessor) -> None:
        state = new_state(inputs, prompt_logprobs=0)
        state.update(prompt_logprobs=self.ENTRIES[:1])
        assert state.finish(FinishReason.ABORT).prompt_logprobs is None

    def test_none_are_asked_for_by_default(self, inputs: InputProcessor) -> None:
        assert new_state(inputs).state.requests[0].num_prompt_logprobs is None


class TestSeveral:
    """n > 1."""

    def test_an_output_tells_of_those_that_have_news(self, inputs: InputProcessor) -> None:
        state = new_state(inputs, n=3, output_kind="delta")
        state.state.update(token_output(state.ids[2], b"c"), 0.0)
        output = state.update(b"a")
        assert output is not None
        assert [(item.index, item.text) for item in output.outputs] == [(0, "a"), (2, "c")]
        assert (output.num_output_tokens, output.is_finished) == (2, False)

    def test_it_has_ended_when_all_have(self, inputs: InputProcessor) -> None:
        state = new_state(inputs, n=2, output_kind="delta")
        first = state.update(b"a", index=1, reason=FinishReason.LENGTH)
        assert first is not None
        assert first.outputs[0].finish_reason is FinishReason.LENGTH
        assert not first.is_finished
        second = state.update(b"bc", reason=FinishReason.STOP)
        assert second is not None
        assert [item.index for item in second.outputs] == [0], "one that has ended is not told again"
        assert (second.is_finished, second.num_output_tokens) == (True, 3)
        assert state.aborts == []

    def test_final_only_has_all_of_them_in_order(self, inputs: InputProcessor) -> None:
        state = new_state(inputs, n=3, output_kind="final_only")
        assert state.update(b"c", index=2, reason=FinishReason.LENGTH) is None
        assert state.update(b"a", reason=FinishReason.LENGTH) is None
        output = state.update(b"b", index=1, reason=FinishReason.LENGTH)
        assert output is not None
        assert [(item.index, item.text) for item in output.outputs] == [(0, "a"), (1, "b"), (2, "c")]

    def test_a_stop_string_ends_one_and_the_others_go_on(self, inputs: InputProcessor) -> None:
        state = new_state(inputs, n=2, stop="x")
        state.update(b"ax", index=1)
        assert state.aborts == [1]
        assert len(state.state.live_ids) == 1

    def test_ending_it_ends_all_that_are_left(self, inputs: InputProcessor) -> None:
        state = new_state(inputs, n=3)
        state.update(b"b", index=1, reason=FinishReason.STOP)
        output = state.finish(FinishReason.ABORT)
        assert state.aborts == [0, 2]
        assert [item.finish_reason for item in output.outputs] == [FinishReason.ABORT] * 2
        assert state.state.outcome == "abort"

    def test_the_prompts_numbers_are_those_of_the_first(self, inputs: InputProcessor) -> None:
        state = new_state(inputs, n=2)
        state.update(b"b", index=1, num_cached_tokens=3)
        output = state.update(b"a", num_cached_tokens=0)
        assert output is not None
        assert output.num_cached_tokens == 0


@pytest.mark.parametrize(
    ("reasons", "outcome"),
    [
        ("stop stop", "stop"),
        ("stop length", "length"),
        ("length abort", "abort"),
        ("timeout stop", "timeout"),
    ],
)
def test_what_it_is_counted_as(inputs: InputProcessor, reasons: str, outcome: str) -> None:
    state = new_state(inputs, n=2)
    for index, reason in enumerate(reasons.split()):
        state.update(b"a", index=index, reason=FinishReason(reason))
    assert state.state.outcome == outcome


def test_a_partial_answer_is_kept_where_time_is_up(inputs: InputProcessor) -> None:
    state = new_state(inputs, output_kind="final_only", stop="bc")
    state.update(b"ab")
    output = state.update(reason=FinishReason.TIMEOUT)
    assert output is not None
    assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("ab", FinishReason.TIMEOUT)
