"""Tokens to look at: ``/tokenize``, ``/detokenize``, ``/v1/chat/completions/render``."""

from __future__ import annotations

from typing import Any

import pytest
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import serving

pytestmark = pytest.mark.anyio
CHAT = [{"role": "user", "content": "hi"}]
RENDERED = "<user>hi<assistant>"


async def post(running: Any, path: str, body: Any) -> Any:
    response = await running.client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def test_a_text_becomes_tokens_and_text_again(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        answer = await post(running, "/tokenize", {"prompt": "añ", "model": "alias"})
        assert answer == {
            "count": 4, "max_model_len": 4096, "tokens": [1, 97, 195, 177], "token_strs": None
        }  # fmt: skip
        bare = {"prompt": "ab", "add_special_tokens": False, "return_token_strs": True}
        answer = await post(running, "/tokenize", bare)
        assert (answer["tokens"], answer["token_strs"]) == ([97, 98], ["a", "b"])
        assert await post(running, "/detokenize", {"tokens": [97, 195, 177]}) == {"prompt": "añ"}
        assert await post(running, "/detokenize", {"tokens": []}) == {"prompt": ""}


async def test_messages_go_through_the_template(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        answer = await post(running, "/tokenize", {"messages": CHAT})
        assert bytes(answer["tokens"]).decode() == RENDERED
        body = {"messages": CHAT, "add_generation_prompt": False, "add_special_tokens": True}
        assert (await post(running, "/tokenize", body))["tokens"] == [1, *b"<user>hi"]


async def test_rendering_takes_what_a_chat_completion_takes(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        path = "/v1/chat/completions/render"
        answer = await post(running, path, {"messages": CHAT, "max_tokens": 5, "stream": True})
        assert answer == {
            "prompt": RENDERED, "token_ids": list(RENDERED.encode()), "count": 19, "max_model_len": 4096
        }  # fmt: skip
        wrong = await running.client.post(path, json={"messages": CHAT, "temperature": 9})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "temperature")
        assert running.engine.submitted == []


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": CHAT}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "x", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "pilot", "content": "x"}]}, "messages[0].role"),
        ("/tokenize", {"prompt": "x", "colour": 1}, "colour"),
        ("/tokenize", {"prompt": "x", "model": "other"}, "model"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [97, 256]}, "tokens[1]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
        ("/v1/chat/completions/render", {"messages": []}, "messages"),
    ],
)
async def test_the_wrong_field_is_named(anyio_backend_name: str, path: str, body: Any, param: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        response = await running.client.post(path, json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (404 if param == "model" else 400, param), error


async def test_a_model_without_a_template_says_so(anyio_backend_name: str) -> None:
    engine = FakeEngine()
    engine.chat_template = None
    async with serving(engine, anyio_backend_name) as running:
        response = await running.client.post("/tokenize", json={"messages": CHAT})
    assert response.status_code == 400
    assert "--chat-template" in response.json()["error"]["message"]


async def test_a_long_text_is_worked_on_beside_the_loop(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        answer = await post(running, "/tokenize", {"prompt": "x" * 100_000})
        assert answer["count"] == 100_001
        text = (await post(running, "/detokenize", {"tokens": answer["tokens"][1:]}))["prompt"]
    assert text == "x" * 100_000


async def test_nothing_is_tokenised_before_the_model_is_there(anyio_backend_name: str) -> None:
    engine = FakeEngine(is_loading_held=True)
    async with serving(engine, anyio_backend_name, is_ready=False) as running:
        for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [97]})):
            assert (await running.client.post(path, json=body)).status_code == 503
