"""Items of an answer, and events that add up to them, whatever the deltas are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.triolet.web.responses import fold

from triolet.request import TokenLogprobs
from triolet.text.parsed_text import ToolCallDelta
from triolet.web.generation import Delta
from triolet.web.responses_output import Event, OutputItems

PIECES = st.lists(
    st.tuples(st.sampled_from(["text", "reasoning", "call", "more"]), st.text(min_size=1, max_size=3)),
    max_size=12,
)


def output_items(*, has_logprobs: bool = False) -> OutputItems:
    numbers = count()
    return OutputItems(lambda kind: f"{kind}_{next(numbers)}", written if has_logprobs else None)


def written(logprobs: Sequence[TokenLogprobs]) -> list[dict[str, Any]]:
    return [{"token": str(position.token_ids[0])} for position in logprobs]


def delta(**news: Any) -> Delta:
    fields: dict[str, Any] = {
        "index": 0,
        "text": "",
        "logprobs": None,
        "finish_reason": None,
        "stop_reason": None,
        "seed": 1,
    }
    return Delta(**(fields | news))


def logprobs_of(*token_ids: int) -> list[TokenLogprobs]:
    return [TokenLogprobs((token_id,), (-1.0,), 1) for token_id in token_ids]


def deltas_of(pieces: Sequence[tuple[str, str]]) -> list[Delta]:
    """A run of calls, texts and reasoning; ``more`` are arguments of the call before."""
    deltas: list[Delta] = []
    number, is_called = -1, False
    for token_id, (kind, text) in enumerate(pieces):
        news: dict[str, Any] = {"num_tokens": 1, "logprobs": logprobs_of(token_id)}
        if kind == "call" or (kind == "more" and not is_called):
            number += 1
            news["tool_calls"] = (ToolCallDelta(number, f"call_{number}", "f", text),)
        elif kind == "more":
            news["tool_calls"] = (ToolCallDelta(number, arguments=text),)
        else:
            news[kind] = text
        is_called = kind in ("call", "more")
        deltas.append(delta(**news))
    return deltas


@settings(max_examples=60, deadline=None)
@given(PIECES, st.sampled_from(["completed", "incomplete"]), st.booleans())
def test_the_events_add_up_to_the_items(
    pieces: list[tuple[str, str]], status: str, has_logprobs: bool
) -> None:
    output = output_items(has_logprobs=has_logprobs)
    events: list[Event] = []
    for news in deltas_of(pieces):
        events += output.add(news)
    assert [item["status"] for item in output.items()[:-1]] == ["completed"] * (len(output.items()) - 1)
    events += output.finish(status)
    items = output.items()
    assert fold(events) == items
    assert items[-1]["status"] == status
    assert [item["id"] for item in items] == [f"{item['type']}_{i}" for i, item in enumerate(items)]
    assert "".join(told(items)) == "".join(text for _, text in pieces)


def told(items: Sequence[dict[str, Any]]) -> list[str]:
    return [item["arguments"] if "arguments" in item else item["content"][0]["text"] for item in items]


def test_an_answer_of_nothing_is_an_empty_message() -> None:
    output = output_items()
    events = output.finish("completed")
    (item,) = output.items()
    assert (item["type"], item["content"][0]["text"]) == ("message", "")
    assert not any(event["type"].endswith(".delta") for event in events)


def test_tokens_that_end_reasoning_count_to_it_and_those_of_the_text_do_not() -> None:
    output = output_items()
    for news in ({"reasoning": "Hm"}, {"reasoning": "."}, {}, {"text": "Yes"}, {}):
        output.add(delta(num_tokens=2, **news))
    assert output.num_reasoning_tokens == 6


def test_log_probabilities_come_with_the_text_of_messages() -> None:
    output = output_items(has_logprobs=True)
    events = output.add(delta(reasoning="Hm", logprobs=logprobs_of(1)))
    assert "logprobs" not in events[-1]
    (_, _, _, _, told_of) = output.add(delta(text="Y", logprobs=logprobs_of(2)))[-5:]
    assert [entry["token"] for entry in told_of["logprobs"]] == ["1", "2"]
    output.add(delta(logprobs=logprobs_of(3)))
    output.finish("completed")
    assert [entry["token"] for entry in output.items()[1]["content"][0]["logprobs"]] == ["1", "2", "3"]


def test_calls_alone_are_not_followed_by_a_message() -> None:
    output = output_items(has_logprobs=True)
    output.add(delta(tool_calls=(ToolCallDelta(0, "1", "f", "{}"),), logprobs=logprobs_of(1)))
    output.finish("completed")
    assert [item["type"] for item in output.items()] == ["function_call"]


def test_one_delta_may_hold_everything() -> None:
    output = output_items()
    calls = (
        ToolCallDelta(0, "1", "f", "{}", content_offset=3),
        ToolCallDelta(1, "2", "g", content_offset=4),
    )
    output.add(delta(reasoning="Hm", text="Yes.", tool_calls=calls))
    assert [item["type"] for item in output.items()] == [
        "reasoning", "message", "function_call", "message", "function_call"
    ]  # fmt: skip
