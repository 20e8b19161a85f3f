"""What the routes of the OpenAI API and those about tokens answer is what the document says."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from tests.triolet.web.documented import check_documented
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import serving

from triolet.text.reasoning import REASONING_FORMATS

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
REPLY = '<think>Hm.</think>Well.\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
STREAMING: tuple[dict[str, Any], ...] = (
    {},
    {"stream": True},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"stream": True, "stream_options": {"continuous_usage_stats": True}, "return_progress": True},
)


def engine() -> FakeEngine:
    fake = FakeEngine(reply=REPLY)
    assert fake.chat_template is not None
    fake.chat_template.reasoning_format = REASONING_FORMATS[0]
    return fake


async def test_chat_completions(anyio_backend_name: str) -> None:
    bodies: tuple[dict[str, Any], ...] = (
        {},
        {"n": 2, "max_completion_tokens": 9},
        {"logprobs": True, "top_logprobs": 2},
        {"tools": TOOLS},
        {"tools": TOOLS, "logprobs": True},
    )
    async with serving(engine(), anyio_backend_name) as running:
        for body, streaming in product(bodies, STREAMING):
            answer = await running.client.post("/v1/chat/completions", json=CHAT | body | streaming)
            assert answer.status_code == 200
            check_documented(answer)


async def test_completions(anyio_backend_name: str) -> None:
    bodies: tuple[dict[str, Any], ...] = (
        {},
        {"prompt": ["a", "b"], "max_tokens": 3},
        {"logprobs": 2, "echo": True},
    )
    async with serving(engine(), anyio_backend_name) as running:
        for body, streaming in product(bodies, STREAMING):
            answer = await running.client.post("/v1/completions", json={"prompt": "hi"} | body | streaming)
            assert answer.status_code == 200
            check_documented(answer)


async def test_log_probabilities_of_prompts(anyio_backend_name: str) -> None:
    async with serving(engine(), anyio_backend_name) as running:
        for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": "hi"})):
            check_documented(await running.client.post(path, json=body | {"prompt_logprobs": 1}))


async def test_models_and_tokens(anyio_backend_name: str) -> None:
    async with serving(engine(), anyio_backend_name) as running:
        for path in ("/v1/models", "/v1/models/fake/model", "/v1/models/nobody"):
            check_documented(await running.client.get(path))
        bodies: list[tuple[str, dict[str, Any]]] = [
            ("/tokenize", {"prompt": "hi", "return_token_strs": True}),
            ("/tokenize", CHAT),
            ("/detokenize", {"tokens": [72]}),
            ("/detokenize", {"tokens": [-1]}),
            ("/v1/chat/completions/render", CHAT),
        ]
        for path, body in bodies:
            check_documented(await running.client.post(path, json=body))
