"""``POST /v1/completions`` over a real socket."""

from __future__ import annotations

from typing import Any

import pytest
from tests.triolet.web.fake_engine import REPLY, FakeEngine
from tests.triolet.web.serving import events_of, serving

from triolet.request import RequestOptions

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


@pytest.mark.parametrize("is_last_asked_for", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_usage_so_far_in_each_chunk(
    anyio_backend_name: str, path: str, is_last_asked_for: bool
) -> None:
    options = {"continuous_usage_stats": True, "include_usage": is_last_asked_for}
    prompt = {"prompt": "hi"} if "chat" not in path else {"messages": [{"role": "user", "content": "hi"}]}
    body = prompt | {"max_tokens": 3, "stream": True, "stream_options": options}
    async with serving(FakeEngine(reply="xyz"), anyio_backend_name) as running:
        chunks = events_of((await running.client.post(path, json=body)).text)[:-1]
        plain = (await running.client.post(path, json=prompt | {"max_tokens": 3})).json()
    told = [chunk["usage"] for chunk in chunks]
    assert {usage["prompt_tokens"] for usage in told} == {plain["usage"]["prompt_tokens"]}
    counts = [usage["completion_tokens"] for usage in told]
    assert counts == sorted(counts)
    assert {1, 2, 3} <= set(counts)
    assert told[-1] == plain["usage"]
    assert [chunk["choices"] for chunk in chunks].count([]) == is_last_asked_for


async def complete(anyio_backend_name: str, engine: FakeEngine | None = None, **body: Any) -> Any:
    async with serving(engine or FakeEngine(reply="xyz"), anyio_backend_name) as running:
        response = await running.client.post("/v1/completions", json={"max_tokens": 2} | body)
    return response.json()


async def test_choices_of_a_prompt_stand_together_and_tell_their_seeds(anyio_backend_name: str) -> None:
    answer = await complete(anyio_backend_name, prompt=["a", "bb"], n=2, seed=7)
    assert [(choice["index"], choice["seed"]) for choice in answer["choices"]] == [
        (0, 7),
        (1, 8),
        (2, 7),
        (3, 8),
    ]
    assert answer["usage"]["prompt_tokens"] == 3, "each prompt counts once"
    assert answer["usage"]["completion_tokens"] == 8, "and each choice"


async def test_an_echo_begins_with_the_prompt(anyio_backend_name: str) -> None:
    answer = await complete(anyio_backend_name, prompt="ab", echo=True, logprobs=1, n=2)
    for choice in answer["choices"]:
        assert choice["text"] == "abxy"
        assert choice["logprobs"]["tokens"] == ["a", "b", "x", "y"]
        assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3]
        assert choice["logprobs"]["token_logprobs"] == [None, -0.25, -0.25, -0.25]
        assert choice["logprobs"]["top_logprobs"][0] is None
        assert "prompt_logprobs" not in choice
    assert answer["usage"]["completion_tokens"] == 4


async def test_the_prompt_alone(anyio_backend_name: str) -> None:
    answer = await complete(anyio_backend_name, prompt="ab", echo=True, logprobs=1, max_tokens=0)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "length")
    assert choice["logprobs"]["tokens"] == ["a", "b"]
    assert answer["usage"]["completion_tokens"] == 0


async def test_a_cut_prompt_is_echoed_as_it_was_cut(anyio_backend_name: str) -> None:
    answer = await complete(anyio_backend_name, prompt="ab", echo=True, truncate_prompt_tokens=9)
    assert answer["choices"][0]["text"] == "abxy"


async def test_prompt_logprobs_by_position_and_token(anyio_backend_name: str) -> None:
    answer = await complete(anyio_backend_name, prompt="ab", prompt_logprobs=1)
    first, second = answer["choices"][0]["prompt_logprobs"]
    assert first is None
    assert second == {str(ord("b")): {"logprob": -0.5, "rank": 1, "decoded_token": "b"}}


async def test_how_it_is_to_be_served_reaches_the_engine(anyio_backend_name: str) -> None:
    engine = FakeEngine()
    await complete(anyio_backend_name, engine, prompt="a", user="ann", cache_salt="s", timeout=5)
    ((_, _, asked),) = engine.submitted
    assert asked["options"] == RequestOptions(fairness_key="ann", cache_salt="s", timeout=5)
