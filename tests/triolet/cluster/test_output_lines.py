"""What a child writes becomes lines."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.cluster.output_lines import (
    MAX_LINE_BYTES,
    NUM_LAST_LINES,
    OutputLines,
    last_words,
    write_to_stderr,
)


@given(st.lists(st.text("ab \n", max_size=20)))
def test_pieces_of_any_size_are_cut_into_the_same_lines(pieces: list[str]) -> None:
    lines: list[str] = []
    output = OutputLines(lines.append)
    for piece in pieces:
        output.feed(piece.encode())
    output.finish()
    *complete, rest = "".join(pieces).split("\n")
    assert lines == complete + [rest] * bool(rest)
    assert list(output.last) == lines[-NUM_LAST_LINES:]


def test_a_line_without_an_end_is_cut_and_bytes_that_are_no_text_are_shown() -> None:
    lines: list[str] = []
    output = OutputLines(lines.append)
    output.feed(b"x" * (2 * MAX_LINE_BYTES + 3))
    output.feed(b"\xff\r\n")
    output.finish()
    assert lines == ["x" * MAX_LINE_BYTES, "x" * MAX_LINE_BYTES, "xxx\\xff"]


def test_a_line_that_comes_at_once_is_cut_too() -> None:
    lines: list[str] = []
    output = OutputLines(lines.append)
    output.feed(b"x" * (2 * MAX_LINE_BYTES + 3) + b"\nnext\n")
    assert lines == ["x" * MAX_LINE_BYTES, "x" * MAX_LINE_BYTES, "xxx", "next"]
    assert len(last_words(tuple(lines))) < MAX_LINE_BYTES, "clients are told less"


def test_what_is_logged_in_passing_tells_nothing_of_a_death() -> None:
    lines: list[str] = []
    output = OutputLines(lines.append)
    told = ["2026-11-30 11:44:18,858 ERROR [engine 0] triolet.runtime: no memory", "terminate called"]
    output.feed(
        "\n".join(["2026-11-30 11:44:18,857 INFO [engine 0] triolet.runtime: ready", *told, ""]).encode()
    )
    assert len(lines) == 3
    assert list(output.last) == told


def test_what_was_fatal_is_kept_before_all_that_follows() -> None:
    output = OutputLines(lambda line: None)
    lines = ["Fatal Python error: Aborted", *(str(number) for number in range(2 * NUM_LAST_LINES))]
    output.feed("\n".join(["before", *lines, ""]).encode())
    assert list(output.last) == lines[:NUM_LAST_LINES]


def test_lines_go_to_standard_error_if_there_is_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_to_stderr("seen")
    assert capsys.readouterr().err == "seen\n"
    monkeypatch.setattr(sys, "stderr", None)
    write_to_stderr("nobody to see it")


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ((), ""),
        (("", " "), ""),
        (tuple("abcdefg"), "; it wrote: c | d | e | f | g"),
        (
            ("Fatal Python error: Aborted", "", 'File "/home/me/secret.py"'),
            "; it wrote: Fatal Python error: Aborted",
        ),
    ],
)
def test_of_a_trace_only_the_headline_is_told(lines: tuple[str, ...], told: str) -> None:
    assert last_words(lines) == told
