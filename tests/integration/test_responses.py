"""The official client and the agents SDK on ``/v1/responses``, against a server as its users have it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pydantic
import pytest
from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from tests.integration.real_server import real_server

MODEL = "smollm2"
pytestmark = [pytest.mark.model, pytest.mark.slow]


class Colour(pydantic.BaseModel):
    name: Literal["red", "green", "blue"]
    is_warm: bool


@pytest.fixture(scope="module")
def server(smollm2_path: Path) -> Iterator[str]:
    with real_server(smollm2_path) as url:
        yield url


@pytest.fixture
def client(server: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server}/v1", api_key="unused", max_retries=0) as client:
        yield client


def test_a_response_is_answered_streamed_kept_and_gone_on_from(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "instructions": "Be brief.",
        "temperature": 0,
        "max_output_tokens": 16,
    }
    plain = client.responses.create(input="Name a colour.", **asked)
    with client.responses.stream(input="Name a colour.", **asked) as stream:
        events = list(stream)
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == plain.output_text != ""
    assert plain.usage is not None
    assert 0 < plain.usage.output_tokens <= 16
    assert client.responses.retrieve(plain.id).output_text == text
    counted = client.responses.input_tokens.count(
        model=MODEL, instructions="Be brief.", input="Name a colour."
    )
    assert counted.input_tokens == plain.usage.input_tokens
    second = client.responses.create(input="Another one.", previous_response_id=plain.id, **asked)
    listed = client.responses.input_items.list(second.id, order="asc").data
    assert [(item.type, getattr(item, "role", None)) for item in listed] == [
        ("message", "user"), ("message", "assistant"), ("message", "user"),
    ]  # fmt: skip
    assert client.responses.cancel(second.id).status == second.status
    client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError, match=second.id):
        client.responses.retrieve(second.id)


def test_a_response_is_written_in_the_background(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "input": "Tell a story.", "temperature": 0, "background": True}
    events = list(client.responses.create(stream=True, max_output_tokens=12, **asked))
    response = events[-1].response
    again = list(client.responses.retrieve(response.id, stream=True, starting_after=4))
    assert again == events[5:]
    assert client.responses.retrieve(response.id) == response
    assert response.output_text
    endless = client.responses.create(max_output_tokens=1500, **asked)
    assert (endless.status, endless.background) == ("queued", True)
    assert client.responses.cancel(endless.id).status == "cancelled"
    while (last := client.responses.retrieve(endless.id)).status in ("queued", "in_progress"):
        pass  # it ends with the step under way
    assert last.status == "cancelled"


def test_an_answer_is_parsed(client: openai.OpenAI) -> None:
    response = client.responses.parse(
        model=MODEL, input="Describe a colour.", text_format=Colour, max_output_tokens=60, temperature=0
    )
    assert isinstance(response.output_parsed, Colour)
    with client.responses.stream(
        model=MODEL, input="Describe a colour.", text_format=Colour, max_output_tokens=60, temperature=0
    ) as stream:
        assert stream.get_final_response().output_parsed == response.output_parsed


def test_a_tool_is_called_and_its_result_is_told(client: openai.OpenAI) -> None:
    parameters = {
        "type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"],
        "additionalProperties": False,
    }  # fmt: skip
    tools: Any = [{"type": "function", "name": "weather", "parameters": parameters, "strict": True}]
    asked: dict[str, Any] = {
        "model": MODEL,
        "tools": tools,
        "max_output_tokens": 60,
        "parallel_tool_calls": False,
    }
    with client.responses.stream(input="Rain in Oslo?", tool_choice="required", **asked) as stream:
        response = stream.get_final_response()
    (call,) = response.output
    assert call.type == "function_call"
    assert json.loads(call.arguments)["city"] in ("Oslo", "Rome")
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "It rains."}
    told = client.responses.create(input=[result], previous_response_id=response.id, **asked | {"tools": []})
    assert told.output_text
    history: Any = [{"role": "user", "content": "Rain in Oslo?"}, *response.output, result]
    again = client.responses.create(input=history, **asked | {"tools": []})
    assert again.usage is not None
    assert told.usage is not None
    assert again.usage.input_tokens == told.usage.input_tokens


def test_agents_run_their_tools(server: str) -> None:
    set_tracing_disabled(True)
    cities: list[str] = []

    @function_tool
    def weather(city: Literal["Oslo", "Rome"]) -> str:
        """The weather in a city."""
        cities.append(city)
        return f"It rains in {city}."

    async def run() -> tuple[Any, Any, list[Any]]:
        async with openai.AsyncOpenAI(base_url=f"{server}/v1", api_key="unused", max_retries=0) as client:
            agent = Agent(
                "helper",
                instructions="Be brief.",
                model=OpenAIResponsesModel(MODEL, client),
                tools=[weather],
                model_settings=ModelSettings(temperature=0, max_tokens=200, tool_choice="required"),
                tool_use_behavior="stop_on_first_tool",
            )
            result = await Runner.run(agent, "Rain in Oslo?")
            streamed = Runner.run_streamed(agent, "Rain in Oslo?")
            events = [event async for event in streamed.stream_events()]
            return result.final_output, streamed.final_output, events

    first, second, events = asyncio.run(run())
    assert cities
    assert first.startswith("It rains in ")
    assert second.startswith("It rains in ")
    assert any(event.type == "run_item_stream_event" for event in events)
