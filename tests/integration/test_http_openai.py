"""The official client of the API against a live server, on both event loops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio
import openai
import pytest
from tests.fakes import FakeRunner, fake_client
from tests.triolet.web.serving import serving

from triolet import Engine

pytestmark = pytest.mark.anyio
MESSAGES: Any = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
T = TypeVar("T")


async def with_client(backend: str, byte_model: Path, use: Callable[[openai.OpenAI], T], **options: Any) -> T:
    """Run ``use`` in a thread, as ordinary synchronous code of a user."""
    engine = Engine(
        model=str(byte_model), served_model_name="letters", client_factory=fake_client(FakeRunner())
    )
    async with serving(engine, backend, **options) as running:

        def call() -> T:
            url = f"http://127.0.0.1:{running.port}/v1"
            with openai.OpenAI(base_url=url, api_key="k", max_retries=0) as client:
                return use(client)

        return await anyio.to_thread.run_sync(call)


async def test_models(anyio_backend_name: str, byte_model: Path) -> None:
    def use(client: openai.OpenAI) -> tuple[list[str], str]:
        return [model.id for model in client.models.list()], client.models.retrieve("letters").owned_by

    assert await with_client(anyio_backend_name, byte_model, use) == (["letters"], "triolet")


async def test_chat(anyio_backend_name: str, byte_model: Path) -> None:
    def use(client: openai.OpenAI) -> Any:
        return client.chat.completions.create(
            model="letters", messages=MESSAGES, max_tokens=4, temperature=0, logprobs=True
        )

    answer = await with_client(anyio_backend_name, byte_model, use)
    choice = answer.choices[0]
    assert len(choice.message.content) == 4
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "length"
    assert "".join(entry.token for entry in choice.logprobs.content) == choice.message.content
    assert answer.usage.completion_tokens == 4
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


async def test_a_chat_stream(anyio_backend_name: str, byte_model: Path) -> None:
    def use(client: openai.OpenAI) -> list[Any]:
        return list(
            client.chat.completions.create(
                model="letters", messages=MESSAGES, max_tokens=4, stream=True,
                stream_options={"include_usage": True},
            )
        )  # fmt: skip

    chunks = await with_client(anyio_backend_name, byte_model, use)
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert len(text) == 4
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 4


async def test_a_stream_that_is_left(anyio_backend_name: str, byte_model: Path) -> None:
    def use(client: openai.OpenAI) -> str:
        stream = client.chat.completions.create(
            model="letters", messages=MESSAGES, max_tokens=400, stream=True
        )
        with stream:
            for chunk in stream:
                if chunk.choices[0].delta.content:
                    return chunk.choices[0].delta.content
        return ""

    assert await with_client(anyio_backend_name, byte_model, use)


async def test_completions(anyio_backend_name: str, byte_model: Path) -> None:
    def use(client: openai.OpenAI) -> tuple[Any, list[Any]]:
        create = client.completions.create
        plain = create(model="letters", prompt=["abc", "bcd"], max_tokens=3, logprobs=1)
        return plain, list(create(model="letters", prompt="abc", max_tokens=3, stream=True))

    plain, chunks = await with_client(anyio_backend_name, byte_model, use)
    assert [choice.text for choice in plain.choices] == ["def", "def"]
    assert plain.choices[0].logprobs.tokens == ["d", "e", "f"]
    assert plain.choices[0].logprobs.text_offset == [0, 1, 2]
    assert "".join(chunk.choices[0].text for chunk in chunks) == "def"


async def test_errors_are_the_exceptions_of_the_client(anyio_backend_name: str, byte_model: Path) -> None:
    def use(client: openai.OpenAI) -> list[Any]:
        create = client.chat.completions.create
        wrong: list[tuple[type[openai.APIStatusError], dict[str, Any]]] = [
            (openai.BadRequestError, {"temperature": 9}),
            (openai.BadRequestError, {"tools": [{"type": "function", "function": {"name": "f g"}}]}),
            (openai.NotFoundError, {"model": "other"}),
            (openai.BadRequestError, {"max_tokens": 10**6}),
            (openai.AuthenticationError, {"extra_headers": {"Authorization": "Bearer wrong"}}),
        ]
        errors = []
        for kind, fields in wrong:
            with pytest.raises(kind) as caught:
                create(**({"model": "letters", "messages": MESSAGES} | fields))
            errors.append((caught.value.status_code, caught.value.param, caught.value.code))
        return errors

    errors = await with_client(anyio_backend_name, byte_model, use, api_key="k")
    assert errors == [
        (400, "temperature", None),
        (400, "tools[0].function.name", None),
        (404, "model", "model_not_found"),
        (400, "max_tokens", "context_length_exceeded"),
        (401, None, "invalid_api_key"),
    ]


async def test_several_choices_with_biases_and_logprobs_of_the_prompt(
    anyio_backend_name: str, byte_model: Path
) -> None:
    def use(client: openai.OpenAI) -> tuple[Any, list[Any]]:
        common: dict[str, Any] = {
            "model": "letters", "messages": MESSAGES, "max_tokens": 4, "n": 3, "seed": 5,
            "logit_bias": {"97": 1}, "presence_penalty": 0.5, "frequency_penalty": 0.5, "user": "me",
        }  # fmt: skip
        plain = client.chat.completions.create(**common)
        return plain, list(client.chat.completions.create(**common, stream=True))

    plain, chunks = await with_client(anyio_backend_name, byte_model, use)
    assert [choice.index for choice in plain.choices] == [0, 1, 2]
    assert plain.usage.completion_tokens == 12
    for choice in plain.choices:
        parts = [c for chunk in chunks for c in chunk.choices if c.index == choice.index]
        assert "".join(part.delta.content or "" for part in parts) == choice.message.content
        assert [part.finish_reason for part in parts if part.finish_reason] == [choice.finish_reason]


async def test_an_echo_and_fields_beyond_the_api(anyio_backend_name: str, byte_model: Path) -> None:
    def use(client: openai.OpenAI) -> Any:
        return client.completions.create(
            model="letters", prompt="abc", max_tokens=2, echo=True, n=2, best_of=2,
            extra_body={"timeout": 60, "cache_salt": "s", "min_tokens": 1},
        )  # fmt: skip

    answer = await with_client(anyio_backend_name, byte_model, use)
    assert [choice.text for choice in answer.choices] == ["abcde", "abcde"]


async def test_beams(anyio_backend_name: str, byte_model: Path) -> None:
    def use(client: openai.OpenAI) -> Any:
        return client.completions.create(
            model="letters", prompt="abc", max_tokens=3, n=2, extra_body={"use_beam_search": True}
        )

    answer = await with_client(anyio_backend_name, byte_model, use)
    assert answer.choices[0].text == "def"
    assert len(answer.choices) == 2
    assert answer.usage.completion_tokens == 6
