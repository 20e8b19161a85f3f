"""Stop strings cut exactly, whatever the pieces the text comes in."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.errors import InvalidRequestError
from triolet.text.stop import StopMatcher

STOPS = st.lists(st.text("ab\n", min_size=1, max_size=5), min_size=1, max_size=4)
PIECES = st.lists(st.text("ab\nc", max_size=6), max_size=20)


def run(matcher: StopMatcher, pieces: list[str]) -> str:
    return "".join(map(matcher.add, pieces)) + matcher.flush()


def search(text: str, stops: list[str], *, is_included: bool) -> tuple[str, str | None]:
    """The rule in its plainest form: the match that ends first, the longest of several that end together."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end if is_included else end - len(stop)], stop
    return text, None


@given(stops=STOPS, pieces=PIECES, is_included=st.booleans())
@settings(deadline=None, max_examples=1_000)
def test_any_cutting_gives_what_the_whole_text_gives(
    stops: list[str], pieces: list[str], is_included: bool
) -> None:
    matcher = StopMatcher(stops, is_included=is_included)
    text = run(matcher, pieces)
    assert (text, matcher.matched) == search("".join(pieces), stops, is_included=is_included)


@given(stops=STOPS, pieces=PIECES)
@settings(deadline=None, max_examples=1_000)
def test_no_more_is_held_back_than_could_begin_a_stop(stops: list[str], pieces: list[str]) -> None:
    matcher = StopMatcher(stops)
    seen = shown = ""
    for piece in pieces:
        seen += piece
        shown += matcher.add(piece)
        if matcher.matched is not None:
            return
        held = seen[len(shown) :]
        beginnings = [stop[:size] for stop in stops for size in range(len(stop))]
        assert held == max((b for b in beginnings if seen.endswith(b)), key=len)


def test_a_stop_across_pieces() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert [matcher.add(piece) for piece in ["Hi", "!\n", "\nUs", "er: more"]] == ["Hi", "!", "", ""]
    assert matcher.matched == "\n\nUser:"
    assert matcher.add("never shown") == ""
    assert matcher.flush() == ""


def test_a_stop_may_be_kept() -> None:
    matcher = StopMatcher(["END"], is_included=True)
    assert matcher.add("the EN") == "the "
    assert matcher.add("D and more") == "END"


def test_what_was_no_stop_comes_out_at_the_end() -> None:
    matcher = StopMatcher(["<|end|>"])
    assert matcher.add("a <|en") == "a "
    assert matcher.flush() == "<|en"
    assert matcher.matched is None


def test_of_overlapping_stops_the_one_complete_first_wins() -> None:
    matcher = StopMatcher(["abcd", "bc"])
    assert run(matcher, ["xabcd"]) == "xa"
    assert matcher.matched == "bc"


def test_of_stops_complete_together_the_one_that_begins_first_wins() -> None:
    matcher = StopMatcher(["c", "abc"])
    assert run(matcher, ["xab", "c"]) == "x"
    assert matcher.matched == "abc"


def test_without_stops_all_passes() -> None:
    matcher = StopMatcher([])
    assert run(matcher, ["a", "", "b"]) == "ab"
    assert matcher.matched is None


@pytest.mark.parametrize("stops", [[""], ["a", ""], ["x" * 10_000, "y" * 10_000]])
def test_unusable_stops_are_refused(stops: list[str]) -> None:
    with pytest.raises(InvalidRequestError, match="stop") as caught:
        StopMatcher(stops)
    assert caught.value.param == "stop"


def test_an_endless_near_match_takes_linear_time() -> None:
    matcher = StopMatcher(["a" * 5_000 + "b"])
    started = time.thread_time()
    shown = sum(len(matcher.add("aaaa")) for _ in range(50_000))
    assert shown == 200_000 - 5_000
    assert time.thread_time() - started < 10
