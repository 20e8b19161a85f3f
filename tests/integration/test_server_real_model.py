"""``python -m server`` as its users have it: a process, the default model, the official client."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from tests.integration.real_server import real_server

QUESTION: Any = [{"role": "user", "content": "Name three colours."}]
pytestmark = [pytest.mark.model, pytest.mark.slow]


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def server(request: pytest.FixtureRequest, smollm2_path: Path) -> Iterator[str]:
    """The address of a server that was started as a user starts it."""
    with real_server(smollm2_path, "--backend", request.param) as address:
        yield address


@pytest.fixture
def client(server: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server}/v1", api_key="unused", max_retries=0) as client:
        yield client


def test_a_chat_answers_and_its_stream_says_the_same(client: openai.OpenAI) -> None:
    plain = client.chat.completions.create(model="smollm2", messages=QUESTION, max_tokens=24, temperature=0)
    stream = client.chat.completions.create(
        model="smollm2",
        messages=QUESTION,
        max_tokens=24,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == plain.choices[0].message.content
    assert len(text.split()) > 3
    assert chunks[0].choices[0].delta.role == "assistant"
    usage = chunks[-1].usage
    assert usage is not None
    assert plain.usage is not None
    # Not equal: the second found the first's prompt in the prefix cache.
    assert usage.prompt_tokens == plain.usage.prompt_tokens
    assert usage.completion_tokens == plain.usage.completion_tokens


def test_a_completion_with_log_probabilities(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="smollm2", prompt="The capital of France is", max_tokens=3, temperature=0, logprobs=2
    )
    choice = answer.choices[0]
    assert choice.text.startswith(" Paris")
    assert choice.logprobs is not None
    assert "".join(choice.logprobs.tokens or []) == choice.text


def test_the_same_seed_says_the_same_alone_and_in_company(client: openai.OpenAI) -> None:
    def ask(seed: int) -> str:
        answer = client.completions.create(
            model="smollm2", prompt="Once upon a time", max_tokens=24, temperature=1.0, seed=seed
        )
        return answer.choices[0].text

    alone = [ask(seed) for seed in range(4)]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(ask, [seed % 4 for seed in range(16)]))
    assert together == alone * 4
    assert len(set(alone)) == 4


def test_errors_are_those_of_the_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="gpt-5", prompt="hi")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.completions.create(model="smollm2", prompt="hi", temperature=3.0)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="smollm2", prompt="hi " * 20_000, max_tokens=4)
    assert long.value.code == "context_length_exceeded"


def test_a_stream_that_is_left_is_forgotten(client: openai.OpenAI, server: str) -> None:
    stream = client.completions.create(model="smollm2", prompt="One two", max_tokens=2000, stream=True)
    next(iter(stream))
    stream.close()
    # One more request takes more than the step that the slot may still be held for.
    client.completions.create(model="smollm2", prompt="hi", max_tokens=2)
    metrics = httpx.get(f"{server}/metrics").text
    assert re.search(r"^triolet_num_requests_running\S* 0(\.0)?$", metrics, re.MULTILINE)
    assert re.search(r"^triolet_kv_cache_usage\S* 0(\.0)?$", metrics, re.MULTILINE)


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 16}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def json_schema(schema: dict[str, Any]) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}


def test_a_schema_is_followed_streamed_or_not(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {
        "model": "smollm2", "messages": QUESTION, "max_tokens": 80, "temperature": 0,
        "response_format": json_schema(PERSON),
    }  # fmt: skip
    text = client.chat.completions.create(**fields).choices[0].message.content
    jsonschema.validate(json.loads(text or ""), PERSON)
    chunks = client.chat.completions.create(**fields, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text


def test_choices_are_made(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="smollm2", prompt=["Is the sky blue?", "Is grass red?"], n=2,
        extra_body={"structured_outputs": {"choice": [" yes", " no"]}},
    )  # fmt: skip
    assert [choice.text in (" yes", " no") for choice in answer.choices] == [True] * 4


def test_what_cannot_be_enforced_is_refused_by_name(client: openai.OpenAI) -> None:
    for keyword in ("uniqueItems", "minLenght"):
        with pytest.raises(openai.BadRequestError, match=keyword) as caught:
            client.chat.completions.create(
                model="smollm2", messages=QUESTION, response_format=json_schema({keyword: True})
            )
        assert caught.value.param == "response_format.json_schema.schema"
    with pytest.raises(openai.BadRequestError, match="unclosed group") as caught:
        client.completions.create(
            model="smollm2", prompt="a", extra_body={"structured_outputs": {"regex": "(a"}}
        )
    assert caught.value.param == "structured_outputs.regex"


@pytest.mark.parametrize("is_streamed", [False, True])
def test_options_that_leave_no_token_are_the_callers_mistake(
    client: openai.OpenAI, *, is_streamed: bool
) -> None:
    """A client tries a server error again, in vain."""
    with pytest.raises(openai.BadRequestError, match="response_format forbid every one") as caught:
        client.chat.completions.create(
            model="smollm2", messages=QUESTION, response_format={"type": "json_object"},
            extra_body={"min_tokens": 3, "allowed_token_ids": [5]}, stream=is_streamed,
        )  # fmt: skip
    assert caught.value.param == "allowed_token_ids"
