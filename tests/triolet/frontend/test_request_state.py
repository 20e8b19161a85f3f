from __future__ import annotations

import codecs
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import EOS_ID
from tests.triolet.frontend.parts import input_processor, logprobs_of, token_output

from triolet.frontend.input_processor import InputProcessor
from triolet.frontend.request_state import RequestState
from triolet.request import FinishReason, RequestOutput
from triolet.sampling_params import RequestOutputKind, SamplingParams

PIECES = ["a", "b", "ab", "é", "€", "😀", " "]


@pytest.fixture(scope="module")
def inputs(byte_model: Path) -> InputProcessor:
    return input_processor(byte_model)


def new_state(inputs: InputProcessor, **fields: object) -> RequestState:
    return inputs.process((1, 2, 3), SamplingParams(max_tokens=None, **fields))  # type: ignore[arg-type]


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


def tell(state: RequestState, story: Story, *, has_logprobs: bool = False) -> list[RequestOutput]:
    outputs = []
    for index, step in enumerate(story.steps):
        is_last = story.is_last_with_tokens and index == len(story.steps) - 1
        reason = story.reason if is_last else None
        output = state.update(
            token_output(0, step, has_logprobs=has_logprobs, reason=reason), now=float(index)
        )
        if output is not None:
            outputs.append(output)
        if state.finish_reason is not None:
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
        fields = {"stop": stop, "include_stop_str_in_output": is_included, "output_kind": kind}
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
    def finish(self, inputs: InputProcessor, token_ids: list[int], **fields: object) -> RequestOutput:
        state = new_state(inputs, **fields)
        output = token_output(0, token_ids, reason=FinishReason.STOP, stop_token_id=token_ids[-1])
        result = state.update(output, now=1.0)
        assert result is not None
        return result

    def test_the_text_of_a_stop_token_is_left_out(self, inputs: InputProcessor) -> None:
        completion = self.finish(inputs, [*b"hi!"], stop_token_ids=(ord("!"),)).outputs[0]
        assert (completion.text, completion.token_ids) == ("hi", [*b"hi!"])
        assert (completion.finish_reason, completion.stop_reason) == (FinishReason.STOP, ord("!"))

    def test_or_kept_on_request(self, inputs: InputProcessor) -> None:
        fields = {"stop_token_ids": (ord("!"),), "include_stop_str_in_output": True}
        assert self.finish(inputs, [*b"hi!"], **fields).outputs[0].text == "hi!"

    def test_end_of_sequence_is_no_reason_to_name(self, inputs: InputProcessor) -> None:
        completion = self.finish(inputs, [*b"hi", EOS_ID]).outputs[0]
        assert (completion.text, completion.stop_reason) == ("hi", None)

    def test_a_special_token_shows_where_it_is_not_to_be_skipped(self, inputs: InputProcessor) -> None:
        fields = {"include_stop_str_in_output": True, "skip_special_tokens": False}
        assert self.finish(inputs, [*b"hi", EOS_ID], **fields).outputs[0].text == "hi</s>"

    def test_a_stop_string_before_the_stop_token_wins(self, inputs: InputProcessor) -> None:
        output = self.finish(inputs, [*b"hi!"], stop="i", stop_token_ids=(ord("!"),))
        completion = output.outputs[0]
        assert (completion.text, completion.token_ids, completion.stop_reason) == ("h", [*b"hi"], "i")


def test_a_stop_string_ends_the_request_before_the_core_knows(inputs: InputProcessor) -> None:
    state = new_state(inputs, stop="b")
    output = state.update(token_output(0, b"abc"), now=1.0)
    assert output is not None
    assert output.is_finished
    assert state.finish_reason is FinishReason.STOP


def test_held_back_text_comes_at_the_end(inputs: InputProcessor) -> None:
    state = new_state(inputs, stop="abc", output_kind="delta")
    first = state.update(token_output(0, b"xab"), now=1.0)
    assert first is not None
    assert first.outputs[0].text == "x"
    assert state.finish(FinishReason.LENGTH).outputs[0].text == "ab"


def test_a_delta_may_be_tokens_without_text_yet(inputs: InputProcessor) -> None:
    state = new_state(inputs, output_kind="delta")
    output = state.update(token_output(0, "€".encode()[:1]), now=1.0)
    assert output is not None
    assert (output.outputs[0].text, len(output.outputs[0].token_ids)) == ("", 1)


def test_a_step_without_tokens_is_no_news(inputs: InputProcessor) -> None:
    assert new_state(inputs).update(token_output(0), now=1.0) is None


def test_times_and_counts(inputs: InputProcessor) -> None:
    state = new_state(inputs)
    state.update(token_output(0, b"a", num_cached_tokens=2), now=0.0)
    output = state.update(token_output(0, b"bc"), now=5.0)
    assert output is not None
    assert (output.timings.first_token, output.timings.last_token) == (0.0, 5.0)
    assert (output.num_output_tokens, output.num_cached_tokens) == (3, 2)
    assert output.prompt_token_ids == (1, 2, 3)


def test_an_output_handed_out_does_not_change_later(inputs: InputProcessor) -> None:
    state = new_state(inputs)
    first = state.update(token_output(0, b"a"), now=1.0)
    state.update(token_output(0, b"b"), now=2.0)
    assert first is not None
    assert (first.outputs[0].text, first.outputs[0].token_ids) == ("a", [*b"a"])
