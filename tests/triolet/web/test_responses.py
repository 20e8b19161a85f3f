"""``/v1/responses`` over a real socket: answers, streams, what is kept, what ends early, what is refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.triolet.web.fake_engine import REPLY, FakeEngine
from tests.triolet.web.responses import PATH, events_of_stream, fold
from tests.triolet.web.serving import read_until, request_bytes, serving

from triolet.errors import EngineGenerateError, OverloadedError
from triolet.sampling_params import SamplingParams
from triolet.text.reasoning import REASONING_FORMATS

pytestmark = pytest.mark.anyio
TOOLS = [
    {"type": "function", "name": name, "parameters": {"properties": {"city": {"type": "string"}}}}
    for name in ("weather", "news")
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Öslo"}}\n</tool_call>'
LOGPROBS = "message.output_text.logprobs"


def reasoning_engine(reply: str, **options: Any) -> FakeEngine:
    engine = FakeEngine(reply=reply, **options)
    assert engine.chat_template is not None
    engine.chat_template.reasoning_format = REASONING_FORMATS[0]
    return engine


async def test_the_input_is_counted_without_an_answer(anyio_backend_name: str) -> None:
    body = {"input": "hi", "instructions": "be brief", "tools": TOOLS[:1]}
    path = f"{PATH}/input_tokens"
    async with serving(FakeEngine(), anyio_backend_name) as running:
        first = (await running.client.post(PATH, json=body)).json()
        counted = (await running.client.post(path, json=body)).json()
        after = {"input": "and?", "previous_response_id": first["id"]}
        longer = (await running.client.post(path, json=after)).json()
        wrong = await running.client.post(path, json={"input": [{"type": "message", "role": "critic"}]})
        assert len(running.engine.submitted) == 1
    size = len("<system>be brief<user>hi<assistant>")
    assert counted == {"object": "response.input_tokens", "input_tokens": size}
    size = len(f"<user>hi<assistant>{REPLY}<user>and?<assistant>".encode())
    assert longer["input_tokens"] == size
    assert (wrong.status_code, wrong.json()["error"]["param"][:8]) == (400, "input[0]")


async def test_a_response_has_the_shape_of_the_api(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        answer = await running.client.post(
            PATH, json={"input": "hi", "instructions": "be brief", "metadata": {"a": "b"}, "temperature": 0.5}
        )
        ((messages, params, options),) = running.engine.submitted
    response = answer.json()
    assert answer.headers["x-request-id"] == response["id"] == options["request_id"]
    assert response["id"].startswith("resp_")
    (item,) = response["output"]
    assert item["id"].startswith("msg_")
    assert item | {"id": ""} == {
        "id": "", "type": "message", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": REPLY, "annotations": []}],
    }  # fmt: skip
    assert (response["object"], response["status"], response["error"]) == ("response", "completed", None)
    assert (response["metadata"], response["temperature"], response["store"]) == ({"a": "b"}, 0.5, True)
    assert response["usage"] == {
        "input_tokens": 10, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 27,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 37,
    }  # fmt: skip
    assert [message["content"] for message in messages] == ["be brief", "hi"]
    assert isinstance(params, SamplingParams)
    assert params.temperature == 0.5


@pytest.mark.parametrize(
    ("reply", "body"),
    [
        (REPLY, {}),
        ("", {}),
        (REPLY, {"max_output_tokens": 7, "include": [LOGPROBS], "top_logprobs": 2}),
        (f"Let me see.\n{CALL}\n{CALL}", {"tools": TOOLS}),
        (f"<think>\nHm.\n</think>\n\n{CALL}", {"tools": TOOLS, "include": [LOGPROBS]}),
        (f"<think>Hm.</think>Yes.\n{CALL}", {"tools": TOOLS, "max_output_tokens": 60}),
        ("<think>Hm, so", {"max_output_tokens": 10}),
        ("<think>Hm.</think>Yes.", {"include_reasoning": False}),
    ],
)
async def test_a_stream_adds_up_to_the_plain_answer(
    anyio_backend_name: str, reply: str, body: dict[str, Any]
) -> None:
    async with serving(reasoning_engine(reply), anyio_backend_name) as running:
        for running.engine.tokens_per_output in (1, 3, 100):
            plain = (await running.client.post(PATH, json={"input": "hi"} | body)).json()
            streamed = await running.client.post(PATH, json={"input": "hi", "stream": True} | body)
            events = events_of_stream(streamed.text)
            final = events[-1]["response"]
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
            assert events[-1]["type"] == f"response.{final['status']}"
            assert fold(events) == final["output"]
            assert (await running.client.get(f"{PATH}/{final['id']}")).json() == final
            assert without_names(final) == without_names(plain)


def without_names(response: dict[str, Any]) -> dict[str, Any]:
    output = [item | {"id": "", "call_id": ""} for item in response["output"]]
    return response | {"id": "", "created_at": 0, "completed_at": 0, "output": output}


async def test_reasoning_and_calls_are_items_in_their_order(anyio_backend_name: str) -> None:
    engine = reasoning_engine(f"<think>Hm.</think>Let me see.\n{CALL}\n{CALL}")
    async with serving(engine, anyio_backend_name) as running:
        response = (await running.client.post(PATH, json={"input": "hi", "tools": TOOLS})).json()
    reasoning, message, call, other = response["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert message["content"][0]["text"] == "Let me see."
    assert (call["type"], call["name"], call["arguments"]) == (
        "function_call", "weather", '{"city": "Öslo"}'
    )  # fmt: skip
    assert call["call_id"] != other["call_id"]
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == len("Hm.</think>")


async def test_a_conversation_goes_on_from_what_is_kept(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(reply=CALL), anyio_backend_name) as running:
        post = running.client.post
        first = (await post(PATH, json={"input": "Rain?", "instructions": "once", "tools": TOOLS})).json()
        (call,) = first["output"]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "dry"}
        body = {"input": [result], "previous_response_id": first["id"]}
        second = (await post(PATH, json=body)).json()
        listed = (await running.client.get(f"{PATH}/{second['id']}/input_items?order=asc")).json()
        newest = (await running.client.get(f"{PATH}/{second['id']}/input_items?limit=1")).json()
        after = (
            await running.client.get(f"{PATH}/{second['id']}/input_items?after={newest['last_id']}")
        ).json()
    messages = running.engine.submitted[1][0]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Öslo"}'}
    assert messages[2] == {"role": "tool", "tool_call_id": call["call_id"], "content": "dry"}
    assert [item["type"] for item in listed["data"]] == ["message", "function_call", "function_call_output"]
    assert (listed["has_more"], listed["data"][1]) == (False, call)
    assert (newest["data"], newest["has_more"]) == (listed["data"][2:], True)
    assert after["data"] == listed["data"][1::-1]


async def test_an_item_may_be_named_instead_of_sent(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        first = (await running.client.post(PATH, json={"input": "hi"})).json()
        item_id = first["output"][0]["id"]
        for item in ({"type": "item_reference", "id": item_id}, {"id": item_id}):
            answer = await running.client.post(
                PATH, json={"input": [item, {"role": "user", "content": "so"}]}
            )
            assert answer.is_success
            assert [message["content"] for message in running.engine.submitted[-1][0]] == [REPLY, "so"]
        for wrong in ("msg_x", "msg_0_0", item_id + "7"):
            answer = await running.client.post(
                PATH, json={"input": [{"type": "item_reference", "id": wrong}]}
            )
            assert (answer.status_code, answer.json()["error"]["param"]) == (404, "input[0].id")


async def test_what_is_not_kept_is_a_404_that_names_it(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name, response_store_size=1) as running:
        client = running.client
        ids = [(await client.post(PATH, json={"input": "hi"})).json()["id"] for _ in range(2)]
        ids.append((await client.post(PATH, json={"input": "hi", "store": False})).json()["id"])
        for response_id, status in zip(ids, (404, 200, 404), strict=True):
            for path in (response_id, f"{response_id}/input_items"):
                assert (await client.get(f"{PATH}/{path}")).status_code == status
        answer = await client.post(PATH, json={"input": "hi", "previous_response_id": ids[0]})
        assert answer.status_code == 404
        assert answer.json()["error"]["param"] == "previous_response_id"
        assert ids[0] in answer.json()["error"]["message"]
        assert (await client.delete(f"{PATH}/{ids[1]}")).json() == {
            "id": ids[1], "object": "response", "deleted": True
        }  # fmt: skip
        assert (await client.delete(f"{PATH}/{ids[1]}")).status_code == 404
        assert (await client.post(f"{PATH}/{ids[1]}/cancel")).status_code == 404


async def test_a_server_without_a_store_says_so(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name, response_store_bytes=0) as running:
        answer = (await running.client.post(PATH, json={"input": "hi"})).json()
        assert answer["store"] is False
        assert (await running.client.get(f"{PATH}/{answer['id']}")).status_code == 404
        refused = await running.client.post(PATH, json={"input": "hi", "store": True})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "store")


async def test_a_response_that_is_too_large_to_be_kept_says_so(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name, response_store_bytes=4096) as running:
        answer = (await running.client.post(PATH, json={"input": "hi " * 1000, "store": True})).json()
        assert answer["store"] is False
        assert (await running.client.get(f"{PATH}/{answer['id']}")).status_code == 404
        kept = (await running.client.post(PATH, json={"input": "hi", "store": True})).json()
        assert kept["store"] is True
        assert (await running.client.get(f"{PATH}/{kept['id']}")).json() == kept


async def test_nobody_sees_the_responses_of_another_key(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name, api_key="alice:one bob:two") as running:
        alice, bob = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
        body = {"input": "hi"}
        response = (await running.client.post(PATH, json=body, headers=alice)).json()
        path = f"{PATH}/{response['id']}"
        for method in ("GET", "DELETE"):
            assert (await running.client.request(method, path, headers=bob)).status_code == 404
        body["previous_response_id"] = response["id"]
        assert (await running.client.post(PATH, json=body, headers=bob)).status_code == 404
        assert (await running.client.get(path, headers=alice)).status_code == 200


async def test_whoever_gets_a_name_later_sees_nothing_from_before(
    anyio_backend_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOOK_SECONDS", "REST_SECONDS"):
        monkeypatch.setattr(f"triolet.web.key_ring.{name}", 0.0)
    keys = tmp_path / "keys"
    keys.write_text("alice first\n")
    async with serving(FakeEngine(), anyio_backend_name, api_key_file=keys) as running:
        first, second = ({"Authorization": f"Bearer {key}"} for key in ("first", "second"))
        response = (await running.client.post(PATH, json={"input": "hi"}, headers=first)).json()
        path = f"{PATH}/{response['id']}"
        assert (await running.client.get(path, headers=first)).status_code == 200
        keys.write_text("alice second\n")
        assert (await running.client.get(path, headers=second)).status_code == 404


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_cancelling_ends_a_response_with_what_there_is(
    anyio_backend_name: str, is_streamed: bool
) -> None:
    async with serving(FakeEngine(hold_at=5), anyio_backend_name) as running:
        ended: list[Any] = []

        async def ask() -> None:
            ended.append(await running.client.post(PATH, json={"input": "hi", "stream": is_streamed}))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await running.engine.wait_held()
            ((_, _, options),) = running.engine.submitted
            path = f"{PATH}/{options['request_id']}"
            seen = (await running.client.get(path)).json()
            body = {"input": "so", "previous_response_id": options["request_id"]}
            refused = await running.client.post(PATH, json=body)
            cancelled = (await running.client.post(f"{path}/cancel")).json()
        kept = (await running.client.get(path)).json()
        again = (await running.client.post(f"{path}/cancel")).json()
    final = events_of_stream(ended[0].text)[-1]["response"] if is_streamed else ended[0].json()
    assert (seen["status"], refused.status_code) == ("in_progress", 400)
    assert cancelled["status"] == final["status"] == "cancelled"
    assert final["output"][0]["content"][0]["text"] == REPLY[:5]
    assert final["output"][0]["status"] == "incomplete"
    assert kept == again == final
    assert running.engine.num_open == 0


async def test_a_key_at_its_limit_can_still_cancel(anyio_backend_name: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alice a1 max_concurrent_requests=1\n")
    async with serving(FakeEngine(hold_at=5), anyio_backend_name, api_key_file=keys) as running:
        running.client.headers["Authorization"] = "Bearer a1"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(running.client.post, PATH, json={"input": "hi"}))
            await running.engine.wait_held()
            ((_, _, options),) = running.engine.submitted
            assert (await running.client.post(PATH, json={"input": "hi"})).status_code == 429
            cancelled = await running.client.post(f"{PATH}/{options['request_id']}/cancel")
            assert cancelled.json()["status"] == "cancelled"


async def test_a_conversation_that_is_too_long_is_cut_where_that_was_asked_for(
    anyio_backend_name: str,
) -> None:
    items = [{"role": "user", "content": letter * 2000} for letter in "abc"]
    async with serving(FakeEngine(), anyio_backend_name) as running:
        refused = await running.client.post(PATH, json={"input": items})
        answer = await running.client.post(PATH, json={"input": items, "truncation": "auto"})
    assert (refused.status_code, answer.status_code) == (400, 200)
    assert answer.json()["truncation"] == "auto"
    ((messages, _, _),) = running.engine.submitted
    assert [message["content"][0] for message in messages] == ["b", "c"]


async def test_a_response_whose_reader_leaves_is_forgotten(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(hold_at=5), anyio_backend_name) as running:
        stream = await running.connect()
        await stream.send(request_bytes(PATH, {"input": "hi", "stream": True}))
        await read_until(stream, b"output_text.delta")
        await stream.aclose()
        await running.engine.wait_open(0)
        ((_, _, options),) = running.engine.submitted
        answer = await running.client.get(f"{PATH}/{options['request_id']}")
        assert answer.status_code == 404


async def test_a_failure_in_a_stream_is_told_and_kept(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(hold_at=5), anyio_backend_name) as running:
        body = {"input": "hi", "stream": True}
        async with running.client.stream("POST", PATH, json=body) as answer:
            await running.engine.wait_held()
            running.engine.fail_all(EngineGenerateError("lost"))
            events = events_of_stream((await answer.aread()).decode())
        kept = (await running.client.get(f"{PATH}/{events[0]['response']['id']}")).json()
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-2]["message"] == "lost"
    assert events[-1]["response"] == kept
    assert kept["error"] == {"code": "server_error", "message": "lost"}
    assert (kept["status"], kept["output"][0]["content"][0]["text"]) == ("failed", REPLY[:5])


async def test_refusals_are_counted_once(anyio_backend_name: str) -> None:
    engine = FakeEngine()
    async with serving(engine, anyio_backend_name) as running:
        wrong: list[dict[str, Any]] = [
            {}, {"input": "hi", "temperature": -1}, {"input": "hi", "previous_response_id": "resp_0"},
            {"input": "hi", "tool_choice": "something"},
        ]  # fmt: skip
        for body in wrong:
            assert (await running.client.post(PATH, json=body)).status_code in (400, 404)
        assert [error.status for error in engine.refused] == [400, 400, 404, 400]
        engine.refusal = OverloadedError("full", retry_after=7)
        answer = await running.client.post(PATH, json={"input": "hi"})
        assert (answer.status_code, answer.headers["retry-after"], len(engine.refused)) == (429, "7", 4)


async def test_wrong_parameters_are_named(anyio_backend_name: str) -> None:
    wrong = {
        "?stream=true": "stream", "?starting_after=3": "starting_after", "/input_items?order=up": "order",
        "/input_items?limit=0": "limit", "/input_items?limit=101": "limit", "/input_items?limit=x": "limit",
        f"/input_items?limit={'9' * 4301}": "limit",
        "/input_items?after=x": "after",
    }  # fmt: skip
    async with serving(FakeEngine(), anyio_backend_name) as running:
        response = (await running.client.post(PATH, json={"input": "hi"})).json()
        for query, param in wrong.items():
            answer = await running.client.get(f"{PATH}/{response['id']}{query}")
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_the_number_of_items_is_bounded(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name, max_num_messages=2) as running:
        items = [{"role": "user", "content": "hi"}] * 3
        answer = await running.client.post(PATH, json={"input": items})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")
