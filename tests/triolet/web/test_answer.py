"""Streamed and plain answers agree; names and ids are right."""

from __future__ import annotations

from typing import Any

import pytest
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import events_of, serving

from triolet.errors import ModelNotFoundError
from triolet.web import answer as answer_module
from triolet.web.answer import check_model

pytestmark = pytest.mark.anyio
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def fold_completion(chunks: list[Any]) -> list[Any]:
    choices: dict[int, Any] = {}
    for piece in (choice for chunk in chunks for choice in chunk["choices"]):
        whole = choices.setdefault(piece["index"], {"index": piece["index"], "text": "", "logprobs": None})
        whole["text"] += piece["text"]
        if piece["logprobs"]:
            parts = whole["logprobs"] or {name: [] for name in piece["logprobs"]}
            whole["logprobs"] = {name: parts[name] + piece["logprobs"][name] for name in parts}
        whole |= {name: piece[name] for name in piece if name not in ("index", "text", "logprobs")}
    return [choices[index] for index in sorted(choices)]


def fold_chat(chunks: list[Any]) -> list[Any]:
    choices: dict[int, Any] = {}
    for piece in (choice for chunk in chunks for choice in chunk["choices"]):
        index = piece["index"]
        empty = {"index": index, "message": {"refusal": None, "content": ""}, "logprobs": None}
        whole = choices.setdefault(index, empty)
        whole["message"]["content"] += piece["delta"].pop("content", "")
        whole["message"] |= piece["delta"]
        if piece["logprobs"]:
            before = whole["logprobs"]["content"] if whole["logprobs"] else []
            whole["logprobs"] = piece["logprobs"] | {"content": before + piece["logprobs"]["content"]}
        whole |= {name: piece[name] for name in piece if name not in ("index", "delta", "logprobs")}
    return [choices[index] for index in sorted(choices)]


@pytest.mark.parametrize("tokens_per_output", [1, 3, 100])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hi", "max_tokens": 100}),
        ("/v1/completions", {"prompt": ["a", "b", "c"], "max_tokens": 11, "logprobs": 2}),
        ("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 1, "logprobs": 0}),
        ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 5, "n": 3, "seed": 1, "logprobs": 0}),
        ("/v1/completions", {"prompt": ["one", "two"], "max_tokens": 5, "echo": True, "n": 2}),
        ("/v1/completions", {"prompt": [104, 105], "max_tokens": 5, "echo": True, "logprobs": 1}),
        ("/v1/completions", {"prompt": "hi", "max_tokens": 0, "echo": True, "logprobs": 1}),
        ("/v1/completions", {"prompt": "hi", "max_tokens": 4, "use_beam_search": True, "n": 2}),
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", CHAT | {"max_tokens": 7, "n": 3, "logprobs": True}),
        ("/v1/chat/completions", CHAT | {"max_tokens": 7, "n": 2, "use_beam_search": True}),
        ("/v1/chat/completions", CHAT | {"max_tokens": 16, "logprobs": True, "top_logprobs": 3, "seed": 5}),
    ],
)
async def test_a_stream_adds_up_to_the_plain_answer(
    anyio_backend_name: str, path: str, body: dict[str, Any], tokens_per_output: int
) -> None:
    engine = FakeEngine(tokens_per_output=tokens_per_output)
    async with serving(engine, anyio_backend_name) as running:
        plain = (await running.client.post(path, json=body)).json()
        streaming = body | {"stream": True, "stream_options": {"include_usage": True}}
        events = events_of((await running.client.post(path, json=streaming)).text)
    chunks = events[:-1]
    fold = fold_completion if path == "/v1/completions" else fold_chat
    assert events[-1] == "[DONE]"
    assert fold(chunks) == plain["choices"]
    assert chunks[-1]["usage"] == plain["usage"]


async def test_a_request_is_named_by_the_caller_or_by_the_server(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:

        async def named(**headers: str) -> tuple[str, str]:
            response = await running.client.post("/v1/chat/completions", json=CHAT, headers=headers)
            return response.headers["X-Request-Id"], response.json()["id"]

        given, answer_id = await named(**{"X-Request-Id": "mine-1"})
        assert given == "mine-1"
        assert answer_id.startswith("chatcmpl-")
        assert len(set(await named())) == 1
        assert (await named(**{"X-Request-Id": "x" * 200}))[0] != "x" * 200
    ids = [options["request_id"] for _, _, options in running.engine.submitted]
    assert len(set(ids)) == 3
    assert "mine-1" not in ids


def test_any_served_name_is_the_model_and_none_means_the_first() -> None:
    engine = FakeEngine()
    assert check_model(engine, None) == "fake/model"
    assert check_model(engine, "alias") == "alias"
    with pytest.raises(ModelNotFoundError, match="'fake/model', 'alias'") as caught:
        check_model(engine, "other")
    assert caught.value.param == "model"
    with pytest.raises(ModelNotFoundError) as caught:
        check_model(engine, "x" * 10**6)
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(("path", "status"), [("/v1/chat/completions", 200), ("/nowhere", 404)])
async def test_an_answer_is_finished_once_by_whoever_comes_first(
    anyio_backend_name: str, monkeypatch: pytest.MonkeyPatch, path: str, status: int
) -> None:
    """The routes do it, and the application does for all else."""
    discarded: list[str] = []

    async def discard(request: Any) -> bool:
        discarded.append(request.path)
        return True

    monkeypatch.setattr(answer_module, "discard_body", discard)
    async with serving(FakeEngine(), anyio_backend_name) as running:
        response = await running.client.post(path, json=CHAT)
    assert response.status_code == status
    assert response.headers.get_list("X-Request-Id") == [response.headers["X-Request-Id"]]
    assert discarded.count(path) == 1
