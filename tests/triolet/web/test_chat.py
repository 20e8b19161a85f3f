"""``POST /v1/chat/completions`` over a real socket."""

from __future__ import annotations

import pytest
from tests.triolet.web.fake_engine import REPLY, FakeEngine
from tests.triolet.web.serving import events_of, serving

from triolet.errors import OverloadedError

pytestmark = pytest.mark.anyio
MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]


async def test_a_chat_completion_has_the_shape_of_the_api(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        answer = (await running.client.post("/v1/chat/completions", json={"messages": MESSAGES})).json()
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert answer["choices"] == [
        {
            "index": 0, "message": {"role": "assistant", "content": REPLY, "refusal": None},
            "logprobs": None, "finish_reason": "stop", "stop_reason": None, "seed": 1234,
        }
    ]  # fmt: skip
    assert answer["usage"]["prompt_tokens"] == 10


async def test_messages_and_options_reach_the_engine(anyio_backend_name: str) -> None:
    body = {"messages": MESSAGES, "seed": 9, "temperature": 0, "add_generation_prompt": False}
    async with serving(FakeEngine(), anyio_backend_name) as running:
        answer = (await running.client.post("/v1/chat/completions", json=body)).json()
    ((messages, params, options),) = running.engine.submitted
    assert messages == MESSAGES
    assert params.seed == 9
    assert params.temperature == 0
    assert options["add_generation_prompt"] is False
    assert answer["choices"][0]["seed"] == 9


async def test_logprobs_have_the_shape_of_the_api(anyio_backend_name: str) -> None:
    body = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 1, "max_tokens": 2}
    async with serving(FakeEngine(), anyio_backend_name) as running:
        answer = (await running.client.post("/v1/chat/completions", json=body)).json()
    assert answer["choices"][0]["logprobs"]["content"][1] == {
        "token": "e",
        "logprob": -0.25,
        "bytes": [101],
        "top_logprobs": [{"token": "e", "logprob": -0.5, "bytes": [101]}],
    }


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"messages": []}, 400),
        ({"messages": MESSAGES, "temperature": -1}, 400),
        ({"messages": MESSAGES, "model": "other"}, 404),
        ({"messages": MESSAGES, "max_completion_tokens": 0}, 400),
    ],
)
async def test_what_is_refused_before_the_engine_sees_it_is_counted(
    body: dict[str, object], status: int, anyio_backend_name: str
) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        assert (await running.client.post("/v1/chat/completions", json=body)).status_code == status
        assert (await running.client.post("/v1/completions", json={})).status_code == 400
        assert [error.status for error in running.engine.refused] == [status, 400]
        assert (await running.client.post("/v1/chat/completions", json={"messages": MESSAGES})).is_success
        assert len(running.engine.refused) == 2


async def test_what_the_engine_refuses_it_counts_itself(anyio_backend_name: str) -> None:
    engine = FakeEngine()
    engine.refusal = OverloadedError("full", retry_after=7)
    async with serving(engine, anyio_backend_name) as running:
        answer = await running.client.post("/v1/chat/completions", json={"messages": MESSAGES})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
    assert engine.refused == []


async def test_every_choice_of_a_stream_has_its_role_and_its_end(anyio_backend_name: str) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "n": 2, "max_tokens": 3, "stream": True}
    async with serving(FakeEngine(reply="xyz"), anyio_backend_name) as running:
        events = events_of((await running.client.post("/v1/chat/completions", json=body)).text)
    choices = [choice for event in events[:-1] for choice in event["choices"]]
    for index in (0, 1):
        mine = [choice for choice in choices if choice["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(choice["delta"].get("content", "") for choice in mine) == "xyz"
        assert [choice["finish_reason"] for choice in mine if choice["finish_reason"]] == ["stop"]


async def test_prompt_logprobs_belong_to_the_whole_answer(anyio_backend_name: str) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "n": 2, "max_tokens": 3, "prompt_logprobs": 0}
    async with serving(FakeEngine(), anyio_backend_name) as running:
        answer = (await running.client.post("/v1/chat/completions", json=body)).json()
    assert [position and list(position) for position in answer["prompt_logprobs"]] == [None, [str(ord("i"))]]
