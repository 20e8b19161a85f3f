"""What is kept of earlier responses comes before what is sent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.triolet.web.fake_engine import FakeEngine

from triolet.errors import InvalidRequestError
from triolet.web.responses_conversation import read_conversation
from triolet.web.responses_directory import ResponseDirectory, ResponseNotFoundError, Running
from triolet.web.responses_schema import ResponsesBody
from triolet.web.settings import WebSettings

pytestmark = pytest.mark.anyio
SAID = {"id": "msg_1_0", "type": "message", "role": "user", "content": []}
ANSWERED = {"id": "msg_1_1", "type": "message", "role": "assistant", "content": []}


def directory_with_a_response(*, has_ended: bool = True) -> ResponseDirectory:
    directory = ResponseDirectory(FakeEngine(), WebSettings())
    response: dict[str, Any] = {"id": "resp_1", "output": [ANSWERED]}
    generation: Any = None
    directory.begin(
        "resp_1", Running("me", True, generation, [SAID], lambda: response | {"status": "in_progress"})
    )
    if has_ended:
        directory.keep(response | {"status": "completed"})
    return directory


async def read(directory: ResponseDirectory, **fields: Any) -> list[dict[str, Any]]:
    conversation = await read_conversation(ResponsesBody(**fields), "resp_2", directory, "me")
    return json.loads(json.dumps(conversation.items))  # type: ignore[no-any-return]


async def test_a_conversation_goes_on() -> None:
    first, second, third = await read(directory_with_a_response(), input="so", previous_response_id="resp_1")
    assert (first, second) == (SAID, ANSWERED)
    assert (third["id"], third["content"][0]["text"]) == ("msg_2_0", "so")


async def test_items_are_found_by_their_names() -> None:
    directory = directory_with_a_response()
    assert await read(directory, input=[{"type": "item_reference", "id": "msg_1_1"}]) == [ANSWERED]
    given = [{"type": "item_reference", "id": "msg_1_0"}]
    assert await read(directory, input=given, previous_response_id="resp_1") == [SAID, ANSWERED, SAID]


async def test_what_is_not_there_is_named() -> None:
    directory = directory_with_a_response()
    for name in ("msg_1_7", "msg_3_0", "strange"):
        with pytest.raises(ResponseNotFoundError) as caught:
            await read(directory, input=[{"type": "item_reference", "id": name}])
        assert caught.value.param == "input[0].id"
    with pytest.raises(ResponseNotFoundError, match="resp_9") as caught:
        await read(directory, input="so", previous_response_id="resp_9")
    assert caught.value.param == "previous_response_id"


async def test_a_response_that_is_still_written_cannot_be_gone_on_from() -> None:
    with pytest.raises(InvalidRequestError, match="still being written"):
        await read(directory_with_a_response(has_ended=False), input="so", previous_response_id="resp_1")
