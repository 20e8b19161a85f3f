"""A thinking budget through the whole engine and its routes, on a model of random weights."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.byte_llama import write_byte_llama
from tests.triolet.web.serving import Running, events_of, serving

from triolet import Engine, SamplingParams

pytestmark = pytest.mark.anyio
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[a]<think>"
    "{# what is known of it: </think>, tools, tool_calls, <tool_call> #}"
)
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 40, "seed": 3}
ADD = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}


@pytest.fixture(scope="module")
def thinking_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_llama(tmp_path_factory.mktemp("thinking") / "m", chat_template=TEMPLATE)


@pytest.fixture(params=[None, "ngram"])
async def running(
    request: pytest.FixtureRequest, anyio_backend_name: str, thinking_llama: Path
) -> AsyncIterator[Running]:
    options: dict[str, Any] = {"num_kv_blocks": 64, "block_size": 8, "num_threads": 1, "dtype": "float32"}
    if request.param:
        options["speculation"] = request.param
    engine = Engine(model=str(thinking_llama), max_num_seqs=4, max_num_batched_tokens=32, **options)
    async with serving(engine, anyio_backend_name) as running:
        yield running


async def post(running: Running, path: str, **fields: Any) -> dict[str, Any]:
    response = await running.client.post(path, json=BODY | fields)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def test_reasoning_ends_with_the_budget(running: Running) -> None:
    path = "/v1/chat/completions"
    plain = await post(running, path, logprobs=True, ignore_eos=True)
    limited = await post(running, path, logprobs=True, ignore_eos=True, thinking_budget=6)
    tokens, wanted = (
        [bytes(entry["bytes"]) for entry in answer["choices"][0]["logprobs"]["content"]]
        for answer in (limited, plain)
    )
    assert tokens[:6] == wanted[:6]
    assert b"".join(tokens[6:14]) == b"</think>"
    assert len(tokens) == 40
    message = limited["choices"][0]["message"]
    assert len(message["reasoning"].encode()) <= 3 * 6
    assert message["content"]
    again = await post(running, path, logprobs=True, ignore_eos=True, reasoning_budget=6)
    assert again["choices"] == limited["choices"]
    stream = await running.client.post(
        path, json=BODY | {"ignore_eos": True, "thinking_budget": 6, "stream": True}
    )
    deltas = [event["choices"][0]["delta"] for event in events_of(stream.text)[:-1]]
    for name in ("reasoning", "content"):
        assert "".join(delta.get(name, "") for delta in deltas) == message[name]


async def test_a_call_that_is_forced_comes_after_it(running: Running) -> None:
    tools = [{"name": "add", "input_schema": ADD}]
    answer = await post(
        running, "/v1/messages", tools=tools, tool_choice={"type": "any", "disable_parallel_tool_use": True},
        thinking={"type": "enabled", "budget_tokens": 5}, max_tokens=100,
    )  # fmt: skip
    thinking, call = answer["content"]
    assert (thinking["type"], call["type"], call["name"]) == ("thinking", "tool_use", "add")
    assert call["input"]["a"] in (1, 2)
    assert answer["stop_reason"] == "tool_use"


async def test_a_format_holds_for_what_comes_after_it(running: Running) -> None:
    """Without tools too, and where the budget ends before the format could."""
    schema = ADD | {"additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "sum", "schema": schema}}
    answer = await post(
        running, "/v1/chat/completions", response_format=wanted, thinking_budget=3, max_tokens=100
    )
    (choice,) = answer["choices"]
    assert json.loads(choice["message"]["content"])["a"] in (1, 2)
    assert choice["message"]["reasoning"]
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("speculation", ["off", "ngram"])
async def test_it_is_kept_by_the_preempted_and_with_a_warm_cache(
    speculation: str, thinking_llama: Path
) -> None:
    """All together want more blocks than there are; twice, so that the second prompts are cached."""
    options: dict[str, Any] = {
        "block_size": 8,
        "num_threads": 1,
        "dtype": "float32",
        "max_num_seqs": 4,
        "max_model_len": 120,
    }
    params = SamplingParams(thinking_budget=20, max_tokens=60, ignore_eos=True, seed=5)
    prompts = [f"<{number}> say it again and again<think>" for number in range(4)]
    answers: dict[int, list[list[int]]] = {}
    for num_blocks in (64, 24):
        engine = Engine(
            model=str(thinking_llama), num_kv_blocks=num_blocks, max_num_batched_tokens=32,
            speculation=speculation, **options,
        )  # fmt: skip
        async with engine:
            found = answers[num_blocks] = [[] for _ in range(2 * len(prompts))]

            async def run(place: int, engine: Engine = engine, found: list[list[int]] = found) -> None:
                async for output in engine.generate(prompts[place % 4], params):
                    found[place] = list(output.outputs[0].token_ids)

            for places in (range(4), range(4, 8)):
                async with anyio.create_task_group() as group:
                    for place in places:
                        group.start_soon(run, place)
            scheduler = engine.statistics().ranks[0].scheduler
            assert bool(scheduler.num_preemptions) == (num_blocks == 24)
    assert answers[24] == answers[64]
    assert answers[64][:4] == answers[64][4:]
    for tokens in answers[64]:
        assert bytes(tokens[20:28]) == b"</think>"
