from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

from triolet.cli.console import PlainHandler, TerminalHandler, set_up_access_log, set_up_logging


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def log(handler: logging.Handler, message: str, level: int = logging.INFO) -> None:
    handler.handle(logging.LogRecord("triolet.engine", level, __file__, 1, message, None, None))


def test_plain_progress_is_written_now_and_then_and_its_end_always() -> None:
    stream, clock = io.StringIO(), Clock()
    handler = PlainHandler(stream, clock)
    for second in range(8):
        clock.now += 1
        log(handler, f"downloading: {second} of 93 MB")
    log(handler, "loading weights")
    lines = [line.split("triolet.engine: ")[1] for line in stream.getvalue().splitlines()]
    assert lines == [
        "downloading: 0 of 93 MB",
        "downloading: 5 of 93 MB",
        "downloading: 7 of 93 MB",
        "loading weights",
    ]


def test_a_terminal_shows_progress_in_place() -> None:
    stream = io.StringIO()
    handler = TerminalHandler(Console(file=stream, force_terminal=True, width=200))
    log(handler, "downloading: 1 of 93 MB")
    log(handler, "downloading: 2 of 93 MB")
    log(handler, "done [really] :smile:", logging.WARNING)
    text = stream.getvalue()
    assert text.count("\x1b[1A\x1b[2K") == 1
    assert "done [really] :smile:" in text


@pytest.mark.parametrize("level", ["debug", "warning"])
def test_set_up_writes_to_standard_error(level: str, capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, before_level = root.handlers[:], root.level
    root.handlers.clear()
    try:
        set_up_logging(level)
        logging.getLogger("triolet.test").info("shown when verbose")
        assert ("shown when verbose" in capsys.readouterr().err) == (level == "debug")
    finally:
        root.handlers[:] = before
        root.setLevel(before_level)


def test_lines_of_the_access_log_are_written_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    access = logging.getLogger("triolet.access")
    before = (access.handlers[:], access.level, access.propagate)
    try:
        set_up_access_log()
        for number in range(3):
            access.info("%s", f'{{"status": 20{number}}}')
    finally:
        access.handlers[:], access.propagate = before[0], before[2]
        access.setLevel(before[1])
    assert capsys.readouterr().err == '{"status": 200}\n{"status": 201}\n{"status": 202}\n'
