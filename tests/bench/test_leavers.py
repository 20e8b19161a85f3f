"""A client that leaves in the midst of an answer, and one whose answer ends too soon."""

from __future__ import annotations

import pytest
from bench.leavers import Leaver
from tests.openai_server import canned_server

BODY = {"stream": True, "messages": []}


def test_a_client_reads_as_far_as_it_is_told_and_leaves() -> None:
    with canned_server(words=("a",) * 5000) as server:
        client = Leaver(server.url, "/chat/completions", BODY, buffer=4096)
        client.read(b'"content"', 3)
        assert client.leave(is_abrupt=True) > 0


def test_an_answer_that_ends_before_is_an_error() -> None:
    with canned_server() as server:
        client = Leaver(server.url, "/chat/completions", BODY)
        with pytest.raises(RuntimeError, match=r"without b'nothing like this'.*\[DONE\]"):
            client.read(b"nothing like this")
        client.leave(is_abrupt=False)
