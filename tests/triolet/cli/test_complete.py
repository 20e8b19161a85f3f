from __future__ import annotations

import io

import pytest
from tests.openai_server import canned_server

from triolet.cli import main


def test_complete_prints_the_continuation(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--max-tokens", "2", "--temperature", "0", "--seed", "7"]
    with canned_server() as server:
        code = main(["complete", "Once", "--url", server.url, *options])
        [(_, body, _)] = server.requests
    assert (code, capsys.readouterr().out) == (0, "Hello there\n")
    assert (body["prompt"], body["max_tokens"], body["temperature"], body["seed"]) == ("Once", 2, 0.0, 7)


def test_complete_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))
    with canned_server() as server:
        main(["complete", "--url", server.url])
        [(_, body, _)] = server.requests
    assert body["prompt"] == "from a pipe"
