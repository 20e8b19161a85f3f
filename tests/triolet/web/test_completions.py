"""``POST /v1/completions`` over a real socket."""

from __future__ import annotations

import pytest
from tests.triolet.web.fake_engine import REPLY, FakeEngine
from tests.triolet.web.serving import events_of, serving

pytestmark = pytest.mark.anyio


async def test_a_completion_has_the_shape_of_the_api(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        answer = (
            await running.client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 99})
        ).json()
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert answer["model"] == "fake/model"
    assert answer["choices"] == [
        {
            "index": 0, "text": REPLY, "logprobs": None, "finish_reason": "stop",
            "stop_reason": None, "seed": 1234,
        }
    ]  # fmt: skip
    num_tokens = len(REPLY.encode())
    assert answer["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": num_tokens,
        "total_tokens": num_tokens + 2,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_the_prompt_reaches_the_engine_as_it_came(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        for prompt in ("text", [1, 2], ["a", "b"], [[1], [2]]):
            await running.client.post("/v1/completions", json={"prompt": prompt, "model": "alias"})
    prompts = [prompt for prompt, _, _ in running.engine.submitted]
    assert prompts == ["text", [1, 2], "a", "b", [1], [2]]


async def test_a_stream_of_several_prompts_tells_them_apart(anyio_backend_name: str) -> None:
    body = {"prompt": ["a", "b"], "max_tokens": 3, "stream": True}
    async with serving(FakeEngine(reply="xyz"), anyio_backend_name) as running:
        response = await running.client.post("/v1/completions", json=body)
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert response.headers["Cache-Control"] == "no-cache"
    choices = [choice for event in events_of(response.text)[:-1] for choice in event["choices"]]
    for index in (0, 1):
        mine = [choice for choice in choices if choice["index"] == index]
        assert "".join(choice["text"] for choice in mine) == "xyz"
        assert [choice["finish_reason"] for choice in mine] == [None, None, "stop"]
