"""Clients of others against one real server: ``anthropic`` and ``litellm`` in Python, ``openai`` on Node."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import anyio
import pytest
from tests.integration.real_server import real_server
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import serving

pytestmark = [pytest.mark.model, pytest.mark.slow]
CLIENTS = Path(__file__).parents[1] / "clients"
NODE = CLIENTS / "node"
QUESTION: Any = [{"role": "user", "content": "Name three colours."}]
GREEDY: dict[str, Any] = {"model": "smollm2", "max_tokens": 16, "extra_body": {"temperature": 0}}
CITY = {"type": "string", "enum": ["Oslo", "Rome"]}
WEATHER: Any = {
    "name": "weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": CITY}, "required": ["city"]},
}


@pytest.fixture(scope="module")
def server(smollm2_path: Path) -> Iterator[str]:
    with real_server(smollm2_path) as address:
        yield address


@pytest.fixture
def client(server: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server, api_key="unused", max_retries=0) as client:
        yield client


def test_a_message_and_its_stream_say_the_same(client: anthropic.Anthropic) -> None:
    plain = client.messages.create(messages=QUESTION, **GREEDY)
    with client.messages.stream(messages=QUESTION, **GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    (block,) = plain.content
    assert block.type == "text"
    assert text == block.text == final.content[0].text  # type: ignore[union-attr]
    assert len(text.split()) > 3
    assert (plain.stop_reason, final.stop_reason) == ("max_tokens", "max_tokens")
    for usage in (plain.usage, final.usage):
        assert usage.cache_read_input_tokens is not None
        counted = client.messages.count_tokens(model="smollm2", messages=QUESTION).input_tokens
        assert usage.input_tokens + usage.cache_read_input_tokens == counted
        assert usage.output_tokens == 16


def test_a_loop_of_tools(client: anthropic.Anthropic) -> None:
    messages = list(QUESTION)
    once: Any = {"type": "any", "disable_parallel_tool_use": True}
    options = GREEDY | {"tools": [WEATHER], "max_tokens": 60}
    with client.messages.stream(messages=messages, tool_choice=once, **options) as stream:
        answer = stream.get_final_message()
    (call,) = answer.content
    assert call.type == "tool_use"
    assert call.input["city"] in CITY["enum"]
    assert answer.stop_reason == "tool_use"
    again = client.messages.create(messages=messages, tool_choice=once, **options).content[0]
    assert again.input == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
    messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(messages=messages, **options).content


def test_what_is_wrong_raises_the_clients_own_errors(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(messages=QUESTION, **GREEDY | {"model": "other"})
    assert missing.value.request_id
    image: Any = [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]
    with pytest.raises(
        anthropic.BadRequestError, match=r"messages\[0\]\.content\[0\]: blocks of type 'image'"
    ):
        client.messages.create(messages=image, **GREEDY)
    long: Any = [{"role": "user", "content": "one " * 9000}]
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 8191"):
        client.messages.create(messages=long, **GREEDY)


@pytest.mark.anyio
async def test_several_at_once(server: str) -> None:
    texts: list[str] = []

    async def ask(client: anthropic.AsyncAnthropic) -> None:
        async with client.messages.stream(messages=QUESTION, **GREEDY) as stream:
            texts.append(await stream.get_final_text())

    async with (
        anthropic.AsyncAnthropic(base_url=server, api_key="unused", max_retries=0) as client,
        anyio.create_task_group() as group,
    ):
        for _ in range(3):
            group.start_soon(ask, client)
    assert len(texts) == 3
    assert len(set(texts)) == 1


@pytest.fixture(scope="module")
def node_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the client and the flows, made by npm."""
    folder = tmp_path_factory.mktemp("node") / "client"
    shutil.copytree(NODE, folder)
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.skipif(shutil.which("npm") is None, reason="Node.js is not installed")
@pytest.mark.timeout(300)
def test_the_flows_of_the_node_client(server: str, node_client: Path) -> None:
    command = ["node", "flows.mjs", f"{server}/v1", "smollm2"]
    done = subprocess.run(command, cwd=node_client, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    text = results["chat"]["text"]
    assert len(text.split()) > 3
    assert results["chat"]["usage"]["completion_tokens"] == 16
    assert results["stream"] == {"text": text}
    assert results["helper"] == {"text": text, "joined": text}
    assert results["tools"]["name"] == "weather"
    assert results["tools"]["arguments"]["city"] in CITY["enum"]
    assert results["parse"]["city"] in CITY["enum"]
    assert results["responses"] == {"text": text, "streamed": text, "follows": True}
    assert results["wrong"] == {"status": 400, "param": "temperature", "kind": "BadRequestError"}
    assert results["left"] == {"models": ["smollm2"]}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Two keys, of which one is soon used up."""
    file = tmp_path / "keys"
    file.touch(0o600)
    file.write_text("one one\ntwo two max_requests_per_minute=1\n")
    return file


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.anyio
async def test_the_flows_of_litellm(server: str, keys: Path, anyio_backend_name: str) -> None:
    loading = FakeEngine(is_loading_held=True)
    loading.model_names = ("smollm2",)
    async with (
        serving(FakeEngine(), anyio_backend_name, api_key_file=keys) as guarded,
        serving(loading, anyio_backend_name, is_ready=False) as other,
    ):
        urls = [server, *(f"http://127.0.0.1:{running.port}" for running in (guarded, other))]
        command = [sys.executable, str(CLIENTS / "litellm_flows.py"), *urls]
        done = await anyio.run_process(command, check=False)
        loading.finish_loading()
    assert done.returncode == 0, done.stderr.decode()
    results = json.loads(done.stdout)
    text, errors = results["chat"]["text"], results["errors"]
    assert len(text.split()) > 3
    assert results["chat"] == results["stream"] == {"text": text, "tokens": 16}
    assert results["asynchronous"] == results["router"] == {"text": text}
    assert results["other_providers"]["text"] == text
    assert results["other_providers"]["completed"]
    assert results["tools"]["name"] == "weather"
    assert results["tools"]["arguments"] == results["tools"]["streamed"]
    assert results["tools"]["arguments"]["city"] in CITY["enum"]
    assert isinstance(results["parse"]["is_city"], bool)
    assert results["responses"] == {"text": text, "status": "incomplete"}
    assert {name: (kind, status) for name, (kind, status, _) in errors.items()} == {
        "wrong": ("BadRequestError", 400), "no key": ("AuthenticationError", 401),
        "too long": ("ContextWindowExceededError", 400), "too much": ("ContextWindowExceededError", 400),
        "no model": ("NotFoundError", 404), "too often": ("RateLimitError", 429),
        "loading": ("ServiceUnavailableError", 503), "embedding": ("APIError", 501),
    }  # fmt: skip
    assert "temperature: must be in [0, 2]" in errors["wrong"][2]
    assert "it needs an embedding model" in errors["embedding"][2]
