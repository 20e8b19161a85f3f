"""What the document says of how fields go together is what the server does."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import serving

from triolet.web.openapi import openapi_document
from triolet.web.route_descriptions import ROUTES

pytestmark = pytest.mark.anyio
DOCUMENT = openapi_document(ROUTES)
SAID = [{"role": "user", "content": "hi"}]
CHAT, COMPLETION, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES, COUNT, TOKENIZE = "/v1/messages", "/v1/messages/count_tokens", "/tokenize"
RENDER = f"{CHAT}/render"
LEAST: dict[str, dict[str, Any]] = {
    CHAT: {"messages": SAID}, COMPLETION: {"prompt": "hi"}, RESPONSES: {"input": "hi"},
    RENDER: {"messages": SAID}, MESSAGES: {"messages": SAID, "max_tokens": 9}, COUNT: {"messages": SAID},
    TOKENIZE: {},
}  # fmt: skip
TOOL = {"type": "function", "function": {"name": "f"}}
CUSTOM = {"name": "f", "input_schema": {"type": "object"}}
LOGPROBS = "message.output_text.logprobs"
TAKEN: list[tuple[str, dict[str, Any]]] = [
    *((path, {}) for path in LEAST if path != TOKENIZE),
    (CHAT, {"stream": True, "stream_options": {"include_usage": True}}),
    (CHAT, {"stream_options": None, "unheard_of": None, "store": True, "echo": False, "best_of": 1}),
    (CHAT, {"logprobs": True, "top_logprobs": 2, "logit_bias": {"65": 1}}),
    (CHAT, {"top_logprobs": 0, "thinking_budget": 1, "add_generation_prompt": True}),
    (CHAT, {"tool_choice": "required", "tools": [TOOL]}),
    (CHAT, {"messages": [*SAID, {"role": "assistant"}]}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}], "refusal": ""}]}),
    (COMPLETION, {"echo": True, "max_tokens": 0}),
    (COMPLETION, {"length_penalty": 1, "truncate_prompt_tokens": -1, "prompt_embeds": None}),
    (COMPLETION, {"use_beam_search": True, "length_penalty": 2, "max_tokens": 3}),
    (COMPLETION, {"stream": True, "return_progress": True}),
    (RESPONSES, {"top_logprobs": 1, "include": [LOGPROBS]}),
    (RESPONSES, {"background": True, "store": True, "n": 1}),
    (RESPONSES, {"tools": [{"type": "function", "name": "f"}]}),
    (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1}, "tools": [CUSTOM]}),
    (COUNT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}),
    (COUNT, {"speed": "standard", "context_management": {"edits": []}, "unheard_of": None}),
    (TOKENIZE, {"prompt": "hi"}),
    (TOKENIZE, {"messages": SAID, "add_generation_prompt": False}),
]
REFUSED: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"stream_options": {}}),
    (CHAT, {"unheard_of": 1}),
    (CHAT, {"echo": True}),
    (CHAT, {"best_of": 2}),
    (CHAT, {"top_logprobs": 1}),
    (CHAT, {"logit_bias": {"a": 1}}),
    (CHAT, {"prompt_logprobs": 1, "stream": True}),
    (CHAT, {"return_progress": True}),
    (CHAT, {"thinking_budget": 1, "reasoning_budget": 1}),
    (CHAT, {"continue_final_message": True, "add_generation_prompt": True}),
    (CHAT, {"tool_choice": "required"}),
    (CHAT, {"tools": [TOOL | {"type": "web_search"}]}),
    (CHAT, {"max_tokens": 0}),
    (CHAT, {"messages": [{"role": "user"}]}),
    (CHAT, {"messages": [{"role": "user", "content": None}]}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
    (CHAT, {"messages": [{"role": "user", "content": "a", "audio": {"id": "b"}}]}),
    (COMPLETION, {"max_tokens": 0}),
    (COMPLETION, {"prompt": ""}),
    (COMPLETION, {"prompt": []}),
    (COMPLETION, {"length_penalty": 2}),
    (COMPLETION, {"truncate_prompt_tokens": 0}),
    (COMPLETION, {"stream": True, "return_progress": True, "use_beam_search": True, "max_tokens": 2}),
    (RESPONSES, {"input": None}),
    (RESPONSES, {"input": ""}),
    (RESPONSES, {"top_logprobs": 1}),
    (RESPONSES, {"background": True, "store": False}),
    (RESPONSES, {"n": 2}),
    (RESPONSES, {"tools": [{"type": "web_search"}]}),
    (RESPONSES, {"stream_options": {}}),
    (MESSAGES, {"thinking": {"type": "enabled"}}),
    (MESSAGES, {"thinking": {"type": "disabled", "budget_tokens": 1}}),
    (MESSAGES, {"max_tokens": 0}),
    (MESSAGES, {"unheard_of": 1}),
    (COUNT, {"speed": "fast"}),
    (MESSAGES, {"top_p": 0}),
    (MESSAGES, {"stop_sequences": [""]}),
    (MESSAGES, {"tools": [{"name": "f"}]}),
    (MESSAGES, {"tools": [CUSTOM], "tool_choice": {"type": "tool"}}),
    (COUNT, {"messages": [{"role": "user", "content": ""}]}),
    (COUNT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
    (COUNT, {"output_config": {"format": {}}}),
    (RENDER, {"timeout": 10**6}),
    (RENDER, {"queue_timeout": 0}),
    (TOKENIZE, {}),
    (TOKENIZE, {"prompt": "hi", "messages": SAID}),
    (TOKENIZE, {"prompt": "hi", "add_generation_prompt": True}),
]


def allows(path: str, body: dict[str, Any]) -> bool:
    """Whether the document does."""
    schema = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return Draft202012Validator({**schema, "components": DOCUMENT["components"]}).is_valid(body)


async def test_what_is_said_is_what_is_done(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(reply="abc"), anyio_backend_name) as running:
        for cases, is_taken in ((TAKEN, True), (REFUSED, False)):
            for path, fields in cases:
                body = LEAST[path] | fields
                answer = await running.client.post(path, json=body)
                assert answer.is_success == is_taken, (path, fields, answer.text)
                assert allows(path, body) == is_taken, (path, fields)


def test_examples_are_allowed() -> None:
    for route in ROUTES:
        if route.body is not None and route.method == "post":
            assert allows(route.path, dict(route.example or {})), route.path
