"""Blocks are one after the other, and what is streamed adds up to what is plain."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from triolet.request import FinishReason
from triolet.text.parsed_text import ToolCallDelta
from triolet.text.tool_parsers.hermes import HERMES
from triolet.web.anthropic.blocks import BlockEvents, fold_blocks
from triolet.web.generation import Delta


def delta(*calls: ToolCallDelta, text: str = "", reasoning: str = "", is_last: bool = False) -> Delta:
    return Delta(
        index=0,
        text=text,
        logprobs=None,
        finish_reason=FinishReason.STOP if is_last else None,
        stop_reason=None,
        seed=1,
        reasoning=reasoning,
        tool_calls=calls,
    )


def events_of(*deltas: Delta) -> list[dict[str, Any]]:
    return list(chain.from_iterable(map(BlockEvents().add, deltas)))


def test_each_kind_of_block_is_opened_filled_and_closed() -> None:
    events = events_of(
        delta(reasoning="so"),
        delta(reasoning=" on", text="Well"),
        delta(ToolCallDelta(0, "c0", "add", "{", content_offset=1), text=","),
        delta(ToolCallDelta(0, arguments='"a": 1}'), ToolCallDelta(1, "c1", "now")),
        delta(is_last=True),
    )
    assert [(event["type"].removeprefix("content_block_"), event["index"]) for event in events] == [
        ("start", 0), ("delta", 0), ("delta", 0), ("delta", 0), ("stop", 0),
        ("start", 1), ("delta", 1), ("delta", 1), ("stop", 1),
        ("start", 2), ("delta", 2), ("delta", 2), ("stop", 2),
        ("start", 3), ("stop", 3),
    ]  # fmt: skip
    thinking, *others = fold_blocks(events)
    assert len(thinking.pop("signature")) == 64
    assert [thinking, *others] == [
        {"type": "thinking", "thinking": "so on"},
        {"type": "text", "text": "Well,"},
        {"type": "tool_use", "id": "c0", "name": "add", "input": {"a": 1}},
        {"type": "tool_use", "id": "c1", "name": "now", "input": {}},
    ]


def test_words_between_calls_stay_there_however_they_came() -> None:
    said = 'Well <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call> and '
    said += '<tool_call>{"name": "now", "arguments": {}}</tool_call> so <tool_call>'
    for size in range(1, len(said) + 1):
        ids = iter("xyz")
        parser = HERMES.new_parser({"add": {}, "now": {}}, partial(next, ids))
        pieces = [parser.add(said[at : at + size]) for at in range(0, len(said), size)]
        deltas = [delta(*piece.tool_calls, text=piece.content) for piece in pieces]
        last = parser.finish()
        blocks = fold_blocks(events_of(*deltas, delta(*last.tool_calls, text=last.content, is_last=True)))
        assert [block.get("text", block.get("name")) for block in blocks] == [
            "Well", "add", " and", "now", " so"
        ]  # fmt: skip


def test_nothing_said_is_no_block() -> None:
    assert fold_blocks(events_of(delta(), delta(is_last=True))) == []


def test_a_call_that_is_cut_off_has_no_input() -> None:
    events = events_of(delta(ToolCallDelta(0, "c0", "add", '{"a": "x'), is_last=True))
    assert fold_blocks(events)[0]["input"] == {}


def test_the_signature_is_that_of_the_whole_text_however_it_came() -> None:
    cut = events_of(delta(reasoning="a"), delta(reasoning="bc", is_last=True))
    assert fold_blocks(cut) == fold_blocks(events_of(delta(reasoning="abc", is_last=True)))


WORDS = st.text(max_size=4)
DELTAS = st.lists(
    st.one_of(
        WORDS.map(lambda text: delta(reasoning=text)),
        WORDS.map(lambda text: delta(text=text)),
        st.integers(0, 9).map(lambda n: delta(ToolCallDelta(n, f"c{n}", "add", f'{{"a": {n}}}'))),
    ),
    max_size=12,
)


@given(DELTAS)
def test_every_block_is_whole_before_the_next(deltas: list[Delta]) -> None:
    events = events_of(*deltas, delta(is_last=True))
    is_open, num_blocks = False, 0
    for event in events:
        if event["type"] == "content_block_start":
            assert not is_open
            assert event["index"] == num_blocks
            is_open, num_blocks = True, num_blocks + 1
        else:
            assert is_open
            assert event["index"] == num_blocks - 1
            is_open = event["type"] != "content_block_stop"
    assert not is_open
    blocks = fold_blocks(events)
    assert len(blocks) == num_blocks
    for kind, name in (("text", "text"), ("thinking", "reasoning")):
        told = "".join(block[kind] for block in blocks if block["type"] == kind)
        assert told == "".join(getattr(one, name) for one in deltas)
