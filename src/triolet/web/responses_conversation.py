"""The conversation that a response answers: what was sent, after what is kept of earlier responses.

Knows where responses are found, and nothing of how one is made.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import msgspec

from triolet.errors import InvalidRequestError
from triolet.web.responses_directory import ResponseDirectory, not_found
from triolet.web.responses_input import Item, read_items, references
from triolet.web.responses_schema import ResponsesBody
from triolet.web.responses_store import StoredResponse

__all__ = ["PREFIX", "Conversation", "read_conversation"]

PREFIX = "resp_"
"""How the id of a response begins."""
ITEM_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}


class Conversation:
    """The items before the answer. Those that are named here tell by their ids in which response they are."""

    def __init__(self, response_id: str) -> None:
        self.items: list[Item] = []
        self._name = response_id.removeprefix(PREFIX)
        self._numbers = count()

    def new_id(self, item_type: str) -> str:
        """An id for the next item."""
        return f"{ITEM_PREFIXES[item_type]}_{self._name}_{next(self._numbers)}"


async def read_conversation(
    body: ResponsesBody, response_id: str, directory: ResponseDirectory, owner: str
) -> Conversation:
    """What the body asks to be answered. ``response_id`` is the new response.

    Raises :class:`InvalidRequestError` or :class:`ResponseNotFoundError` naming the field.
    """
    conversation = Conversation(response_id)
    if body.previous_response_id is not None:
        param = "previous_response_id"
        found = await directory.find(body.previous_response_id, owner, param=param)
        conversation.items += _items_of(found, param)
    known = {item["id"]: item for item in conversation.items}
    for param, item_id in references(body.input or ()):
        if item_id not in known:
            found = await directory.find(_response_of(item_id, param), owner, param=param)
            known |= {item["id"]: item for item in _items_of(found, param)}
        if item_id not in known:
            raise not_found("item", item_id, param)
    conversation.items += read_items(body.input or (), known, conversation.new_id)
    return conversation


def _response_of(item_id: str, param: str) -> str:
    """The response that an item is part of, from its id."""
    match item_id.split("_"):
        case [_, name, _]:
            return PREFIX + name
    raise not_found("item", item_id, param)


def _items_of(found: StoredResponse, param: str) -> list[Item]:
    """A whole conversation, with its answer."""
    response: dict[str, Any] = msgspec.json.decode(found.response)
    if response["status"] in ("queued", "in_progress"):
        raise InvalidRequestError(
            f"{param}: the response {response['id']!r} is still being written; wait for its end", param=param
        )
    items: list[Item] = msgspec.json.decode(found.items)
    items += response["output"]
    return items
