from __future__ import annotations

import io
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import pytest
from tests.openai_server import canned_server

from triolet.cli import chat, main
from triolet.cli.remote import RemoteModel


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_one_message_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    with canned_server() as server:
        assert main(["chat", "Hi", "--system", "Be brief.", "--url", server.url]) == 0
        [(_, body, _)] = server.requests
    assert capsys.readouterr().out == "Hello there!\n"
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]


def test_a_pipe_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("piped"))
    with canned_server() as server:
        main(["chat", "--url", server.url])
        [(_, body, _)] = server.requests
    assert body["messages"] == [{"role": "user", "content": "piped"}]


@pytest.mark.parametrize("message", ["", " \n"])
def test_an_empty_message_is_refused(message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with canned_server() as server:
        assert main(["chat", message, "--url", server.url]) == 2
        assert not server.requests
    assert "message: is empty" in capsys.readouterr().err


def converse(monkeypatch: pytest.MonkeyPatch, url: str, *lines: str) -> None:
    typed: Iterator[str] = iter(lines)

    def read(_prompt: str) -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", read)
    assert main(["chat", "--url", url]) == 0


def test_a_conversation_remembers_until_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    with canned_server() as server:
        converse(monkeypatch, server.url, "one", "", "two", "/reset", "three", "/exit", "never")
        asked = [[message["content"] for message in body["messages"]] for _, body, _ in server.requests]
    assert asked == [["one"], ["one", "Hello there!", "two"], ["three"]]


def test_an_interrupted_answer_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []

    def interrupted_once(
        self: RemoteModel, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]
    ) -> Generator[str, None, None]:
        asked.append([message["content"] for message in messages])
        yield "Well"
        if len(asked) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(RemoteModel, "chat", interrupted_once)
    converse(monkeypatch, "http://127.0.0.1:9/v1", "one", "two")
    assert asked == [["one"], ["two"]]
    assert capsys.readouterr().out == "Well\nWell\n\n"


def test_help_names_the_commands_of_a_conversation() -> None:
    assert "/reset" in chat.DESCRIPTION
