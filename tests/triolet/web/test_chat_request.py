"""Calls and reasoning over a real socket: plain answers, streams that add up to them, what is submitted."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import pytest
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.fake_text import TaggedTemplate
from tests.triolet.web.serving import events_of, serving

from triolet.errors import InvalidRequestError
from triolet.frontend.preparation import LONG_PROMPT
from triolet.sampling_params import SamplingParams
from triolet.text.chat_template import ChatTemplate
from triolet.text.reasoning import REASONING_FORMATS
from triolet.text.tool_parsers.harmony import HARMONY

pytestmark = pytest.mark.anyio
USER = {"role": "user", "content": "Rain?"}
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "parameters": {"properties": {"city": {"type": "string"}}}},
    }
    for name in ("weather", "news")
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Öslo"}}\n</tool_call>'
PATH = "/v1/chat/completions"


def answer_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


async def ask(backend: str, reply: str, *, reasoning: bool = False, **body: Any) -> tuple[Any, FakeEngine]:
    engine = FakeEngine(reply=reply)
    if reasoning and engine.chat_template is not None:
        engine.chat_template.reasoning_format = REASONING_FORMATS[0]
    async with serving(engine, backend) as running:
        answer = await running.client.post(PATH, json={"messages": [USER], **body})
    return answer, engine


def folded(text: str) -> dict[int, dict[str, Any]]:
    """What a stream adds up to, by choice."""
    choices: dict[int, dict[str, Any]] = {}
    for event in events_of(text)[:-1]:
        for choice in event["choices"]:
            known = choices.setdefault(
                choice["index"], {"content": "", "calls": [], "reason": None, "reasoning": ""}
            )
            delta = choice["delta"]
            known["content"] += delta.get("content") or ""
            known["reasoning"] += delta.get("reasoning") or ""
            known["reason"] = known["reason"] or choice["finish_reason"]
            for call in delta.get("tool_calls", ()):
                if call["index"] == len(known["calls"]):
                    known["calls"].append(call["function"] | {"id": call["id"]})
                else:
                    known["calls"][call["index"]]["arguments"] += call["function"]["arguments"]
    return choices


async def test_calls_plain_and_streamed(anyio_backend_name: str) -> None:
    body: dict[str, Any] = {"tools": TOOLS, "n": 2, "logprobs": True}
    plain, _ = await ask(anyio_backend_name, f"Let me see.\n{CALL}\n{CALL}", **body)
    streamed, _ = await ask(anyio_backend_name, f"Let me see.\n{CALL}\n{CALL}", stream=True, **body)
    choices = plain.json()["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["tool_calls"] * 2
    ids = set()
    for index, known in folded(streamed.text).items():
        message = choices[index]["message"]
        assert message["content"] == known["content"] == "Let me see."
        assert len(choices[index]["logprobs"]["content"]) == len(f"Let me see.\n{CALL}\n{CALL}".encode())
        for call, streamed_call in zip(message["tool_calls"], known["calls"], strict=True):
            assert call["function"] == {"name": "weather", "arguments": '{"city": "Öslo"}'}
            assert streamed_call["arguments"] == '{"city": "Öslo"}'
            ids |= {call["id"], streamed_call["id"]}
        assert known["reason"] == "tool_calls"
    assert len(ids) == 8


async def test_length_beats_tool_calls_and_no_call_is_no_reason(anyio_backend_name: str) -> None:
    size = len(CALL.encode())
    for limit in (size - 20, size):
        answer, _ = await ask(anyio_backend_name, CALL + " and more", tools=TOOLS, max_tokens=limit)
        (choice,) = answer.json()["choices"]
        assert choice["finish_reason"] == "length"
        assert choice["message"]["tool_calls"][0]["function"]["name"] == "weather"
        assert choice["message"]["content"] is None
    for reply in (CALL.replace("weather", "other"), CALL[:25], "Hello"):
        answer, _ = await ask(anyio_backend_name, reply, tools=TOOLS)
        (choice,) = answer.json()["choices"]
        assert choice["finish_reason"] == "stop"
        assert (choice["message"]["content"], "tool_calls" in choice["message"]) == (reply, False)


async def test_without_tools_or_with_none_nothing_is_read(anyio_backend_name: str) -> None:
    bodies: list[dict[str, Any]] = [{}, {"tools": TOOLS, "tool_choice": "none"}]
    for body in bodies:
        answer, engine = await ask(anyio_backend_name, CALL, **body)
        assert answer.json()["choices"][0]["message"]["content"] == CALL
        assert "tools" not in engine.submitted[0][2]


async def test_reasoning_is_told_apart(anyio_backend_name: str) -> None:
    reply = f"<think>\nHm.\n</think>\n\n{CALL}"
    for is_streamed in (False, True):
        answer, _ = await ask(anyio_backend_name, reply, reasoning=True, tools=TOOLS, stream=is_streamed)
        if is_streamed:
            known = folded(answer.text)[0]
            assert (known["reasoning"], known["content"], known["reason"]) == ("Hm.", "", "tool_calls")
        else:
            message = answer.json()["choices"][0]["message"]
            assert (message["reasoning"], message["reasoning_content"], message["content"]) == (
                "Hm.",
                "Hm.",
                None,
            )
    answer, _ = await ask(
        anyio_backend_name, "<think>Hm.</think>Yes.", reasoning=True, include_reasoning=False
    )
    message = answer.json()["choices"][0]["message"]
    assert (message["content"], "reasoning" in message) == ("Yes.", False)


async def test_harmony_is_read_without_tools(anyio_backend_name: str) -> None:
    engine = FakeEngine(
        reply="<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    )
    assert engine.chat_template is not None
    engine.chat_template.tool_format, engine.chat_template.reasoning_format = HARMONY, HARMONY.reasoning
    async with serving(engine, anyio_backend_name) as running:
        answer = await running.client.post(PATH, json={"messages": [USER]})
    message = answer.json()["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("Hm.", "Yes.")


async def test_what_reaches_the_engine(anyio_backend_name: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    history = [
        USER,
        {"role": "assistant", "content": None, "reasoning": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "dry"}]},
    ]  # fmt: skip
    body: dict[str, Any] = {
        "messages": history, "tools": TOOLS, "tool_choice": "required", "reasoning_effort": "none",
        "chat_template_kwargs": {"x": 1},
    }  # fmt: skip
    _, engine = await ask(anyio_backend_name, CALL, **body)
    ((messages, params, rendering),) = engine.submitted
    assert isinstance(params, SamplingParams)
    assert params.structured_outputs is not None
    assert messages[1]["tool_calls"] == [call]
    assert messages[1]["reasoning_content"] == "Hm."
    assert messages[2] == {"role": "tool", "tool_call_id": "1", "content": "dry"}
    assert rendering["tools"] == TOOLS
    variables = {"x": 1, "reasoning_effort": "none", "enable_thinking": False}
    assert rendering["chat_template_kwargs"] == variables
    assert isinstance(params.structured_outputs.grammar, str)


async def test_a_message_is_continued(anyio_backend_name: str) -> None:
    body: dict[str, Any] = {
        "messages": [USER, {"role": "assistant", "content": "The"}],
        "continue_final_message": True,
    }
    _, engine = await ask(anyio_backend_name, " sky", **body)
    assert engine.submitted[0][2]["continue_final_message"] is True
    wrong, _ = await ask(anyio_backend_name, " sky", add_generation_prompt=True, **body)
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "continue_final_message")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (
            {"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}},
            "tool_choice",
        ),
        ({"tools": TOOLS, "parallel_tool_calls": False, "structured_outputs": {"regex": "a"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "required", "use_beam_search": True, "max_tokens": 3}, "tools"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
        ({"chat_template_kwargs": {"x": 1, "messages": []}}, "chat_template_kwargs.messages"),
        (
            {"chat_template_kwargs": {"add_generation_prompt": True}},
            "chat_template_kwargs.add_generation_prompt",
        ),
        ({"tools": TOOLS, "structured_outputs": {"json": "{oops"}}, "structured_outputs.json"),
        ({"tools": TOOLS, "structured_outputs": {"json": "[" * 100_000}}, "structured_outputs.json"),
        ({"tools": TOOLS, "structured_outputs": {"json": {"if": {}}}}, "structured_outputs.json"),
        (
            {"tools": TOOLS, "response_format": answer_format({"if": {}})},
            "response_format.json_schema.schema",
        ),
    ],
)
async def test_what_is_wrong_is_named(body: dict[str, Any], param: str, anyio_backend_name: str) -> None:
    answer, _ = await ask(anyio_backend_name, "x", **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_structured_answer_leaves_room_for_calls(anyio_backend_name: str) -> None:
    schema = {"type": "object", "properties": {"wet": {"type": "boolean"}}}
    body: dict[str, Any] = {"tools": TOOLS, "response_format": answer_format(schema)}
    _, engine = await ask(anyio_backend_name, "x", **body)
    params: Any = engine.submitted[0][1]
    assert f"answer: %json {json.dumps(schema)}\n" in params.structured_outputs.grammar


async def test_a_structured_answer_leaves_room_for_reasoning(anyio_backend_name: str) -> None:
    schema = {"type": "object", "properties": {"wet": {"type": "boolean"}}}
    formats = [answer_format(schema), {"type": "json_object"}]
    for asked, expected in zip(formats, [schema, {"type": "object"}], strict=True):
        _, engine = await ask(anyio_backend_name, "x", reasoning=True, response_format=asked)
        params: Any = engine.submitted[0][1]
        grammar = params.structured_outputs.grammar
        assert 'start: ("<think>" thought' in grammar
        assert f"answer: %json {json.dumps(expected)}\n" in grammar
        assert "calls" not in grammar


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("structured_outputs.grammar: at 3(9): failed to compile JSON schema: no 3 | x", "schema: no"),
        ("structured_outputs.grammar: too long", "schema: too long"),
    ],
)
async def test_the_engine_blames_the_format_that_was_sent(
    told: str, expected: str, anyio_backend_name: str
) -> None:
    engine = FakeEngine()
    assert engine.chat_template is not None
    engine.chat_template.reasoning_format = REASONING_FORMATS[0]
    engine.refusal = InvalidRequestError(told, param="structured_outputs.grammar")
    async with serving(engine, anyio_backend_name) as running:
        body = {"messages": [USER], "response_format": answer_format({"type": "object"})}
        answer = await running.client.post(PATH, json=body)
    name = "response_format.json_schema.schema"
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, name)
    assert error["message"] == f"response_format.json_schema.{expected}"


@pytest.mark.parametrize("path", [PATH, f"{PATH}/render"])
async def test_long_tools_are_rendered_beside_the_loop(path: str, anyio_backend_name: str) -> None:
    engine, template = FakeEngine(), NotingTemplate()
    engine.chat_template = template
    body: dict[str, Any] = {
        "messages": [USER],
        "parallel_tool_calls": False,
        "tools": json.loads(json.dumps(TOOLS)),
    }
    body["tools"][0]["function"]["description"] = "x" * LONG_PROMPT
    async with serving(engine, anyio_backend_name) as running:
        assert (await running.client.post(path, json=body)).status_code == 200
    assert template.threads
    assert threading.get_ident() not in template.threads


class NotingTemplate(TaggedTemplate):
    """Notes in which threads it renders."""

    reasoning_format = REASONING_FORMATS[0]

    def __init__(self) -> None:
        self.threads: list[int] = []

    def render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        self.threads.append(threading.get_ident())
        return super().render(messages, **options)


@pytest.mark.parametrize(
    ("begun", "start"),
    [("The", '("<think>" thought'), ("<think>\nHm", '("<think>" thought'), ("<think>\n", "thought")],
)
async def test_a_begun_answer_may_go_on_with_a_call(begun: str, start: str, anyio_backend_name: str) -> None:
    engine = FakeEngine()
    engine.chat_template = ChatTemplate(
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]{# </think> #}"
    )  # type: ignore[assignment]
    body: dict[str, Any] = {
        "messages": [USER, {"role": "assistant", "content": begun}], "tools": TOOLS,
        "continue_final_message": True, "tool_choice": "required",
    }  # fmt: skip
    async with serving(engine, anyio_backend_name) as running:
        answer = await running.client.post(PATH, json=body)
        assert answer.status_code == 200, answer.text
    params: Any = engine.submitted[0][1]
    assert f"start: {start}" in params.structured_outputs.grammar


async def test_variables_of_the_template_may_have_any_name(anyio_backend_name: str) -> None:
    names = ["options", "request_id", "params", "self", "engine", "rendering", "variables", "class", "", "é"]
    variables = dict.fromkeys(names, 1)
    answer, engine = await ask(anyio_backend_name, "x", chat_template_kwargs=variables)
    assert answer.status_code == 200
    assert engine.submitted[0][2]["chat_template_kwargs"] == variables


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_half_a_character_in_arguments_is_an_escape(is_streamed: bool, anyio_backend_name: str) -> None:
    arguments = json.dumps(json.dumps({"city": "\ud800 \ude00"}, ensure_ascii=False))
    reply = f'<tool_call>{{"name": "weather", "arguments": {arguments}}}</tool_call>'
    answer, _ = await ask(anyio_backend_name, reply, tools=TOOLS, stream=is_streamed)
    assert answer.status_code == 200
    if is_streamed:
        (call,) = folded(answer.text)[0]["calls"]
        written = call["arguments"]
    else:
        written = answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    assert written == '{"city": "\\ud800 \\ude00"}'


async def test_a_stream_pings_while_a_call_is_read(anyio_backend_name: str) -> None:
    engine = FakeEngine(reply='<tool_call>{"arguments": {"city": "Oslo"}, "name": "weather"}')
    async with serving(engine, anyio_backend_name, ping_interval=1e-9) as running:
        answer = await running.client.post(PATH, json={"messages": [USER], "tools": TOOLS, "stream": True})
    assert answer.text.count(": ping\n\n") > 10
    assert folded(answer.text)[0]["calls"][0]["arguments"] == '{"city": "Oslo"}'


GRAMMAR = "structured_outputs.grammar"
ENGINE_ERRORS = [
    (f"{GRAMMAR}: at 8(9): failed to compile JSON schema: no 8 | x", GRAMMAR,
     "tools[1].function.parameters: no"),
    (f"{GRAMMAR}: at 99(9): no", GRAMMAR, "tools: at 99(9): no"),
    (f"{GRAMMAR}: 140000 characters", GRAMMAR, "tools: 140000 characters"),
    ("structured_outputs: not compiled in time", "structured_outputs", "tools: not compiled in time"),
    ("bad_words: bad_words and structured_outputs forbid every one", "bad_words",
     "bad_words: bad_words and tools forbid every one"),
    ("max_tokens: too many", "max_tokens", "max_tokens: too many"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "param", "told"), ENGINE_ERRORS)
async def test_the_engine_blames_the_tools_that_were_sent(
    message: str, param: str, told: str, anyio_backend_name: str
) -> None:
    for is_submitted in (False, True):
        engine = FakeEngine(hold_at=0)
        error = InvalidRequestError(message, param=param)
        async with serving(engine, anyio_backend_name) as running, anyio.create_task_group() as group:
            if is_submitted:
                group.start_soon(fail_when_held, engine, error)
            else:
                engine.refusal = error
            body = {"messages": [USER], "tools": TOOLS, "tool_choice": "required"}
            answer = await running.client.post(PATH, json=body)
        known = answer.json()["error"]
        assert (answer.status_code, known["message"]) == (400, told)
        assert told.startswith(known["param"] + ":")


async def fail_when_held(engine: FakeEngine, error: Exception) -> None:
    await engine.wait_held()
    engine.fail_all(error)
