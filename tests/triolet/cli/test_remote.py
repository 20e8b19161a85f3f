from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.openai_server import canned_server

from triolet.cli.remote import RemoteModel, ServerError, event_data
from triolet.errors import UsageError


def test_completion_is_streamed_and_the_model_is_looked_up() -> None:
    with canned_server() as server:
        model = RemoteModel(server.url, api_key="secret")
        assert list(model.complete("Hi", {"max_tokens": 5})) == ["Hello", " there", "!", "Hello", " there"]
        [(path, body, headers)] = server.requests
    assert path == "/v1/completions"
    assert body == {"model": "canned", "stream": True, "prompt": "Hi", "max_tokens": 5}
    assert headers["Authorization"] == "Bearer secret"


def test_chat_uses_the_named_model() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    with canned_server() as server:
        pieces = list(RemoteModel(server.url + "/", model="mine").chat(messages, {}))
        [(path, body, _)] = server.requests
    assert "".join(pieces) == "Hello there!"
    assert (path, body["model"], body["messages"]) == ("/v1/chat/completions", "mine", messages)


def test_an_error_answer_carries_the_servers_words() -> None:
    error = {"error": {"message": "max_tokens: must be positive", "type": "invalid_request_error"}}
    with canned_server(error=(400, error)) as server, pytest.raises(ServerError) as caught:
        list(RemoteModel(server.url, model="m").complete("Hi", {}))
    assert "answered 400: max_tokens: must be positive" in str(caught.value)


def test_an_error_in_the_stream_is_raised_after_what_came_before() -> None:
    with canned_server(mid_stream_error="engine died") as server:
        pieces = RemoteModel(server.url, model="m").complete("Hi", {})
        assert next(pieces) == "Hello"
        with pytest.raises(ServerError, match="engine died"):
            list(pieces)


def test_no_server_says_how_to_start_one() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
        with pytest.raises(ServerError, match="triolet serve"):
            list(RemoteModel(url, model="m").complete("Hi", {}))


def test_a_server_of_another_kind_is_told_from_a_failure() -> None:
    expected = pytest.raises(ServerError, match=r"not of the OpenAI API.*up to and including /v1")
    with canned_server(error=(200, {"hello": "world"})) as server, expected:
        list(RemoteModel(server.url).complete("Hi", {}))


@pytest.mark.parametrize(
    "url", ["", "ftp://host/v1", "http://", "http://host:x/v1", "http://host:99999", "http://[::1"]
)
def test_a_bad_address_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError, match="--url"):
        RemoteModel(url)


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1)))
def test_events_come_back_without_comments(texts: list[str]) -> None:
    texts = [text.strip() for text in texts if text.strip() not in ("", "[DONE]")]
    lines = [line for text in texts for line in (b": ping\n", f"data: {text}\n".encode(), b"\n")]
    assert list(event_data([*lines, b"data: [DONE]\n", b"data: late\n"])) == texts
