"""Which requests are let in: the limits of their key, and no second one of the same name beside the first.

Knows the requests that are open, and nothing of what they ask.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from quart import g, request

from triolet.errors import ConflictError
from triolet.web.api_keys import ApiKey
from triolet.web.headers import given_request_id
from triolet.web.key_limits import KeyLimits
from triolet.web.request_scope import RequestScope, request_scope

__all__ = ["Admission"]

ENDING_ENDPOINTS = frozenset({"cancel_response"})
"""What ends requests is let in also where these fill the limits of their key."""


class Admission:
    """The requests under way that were let in: all POSTs, but for those that only end others."""

    def __init__(self) -> None:
        self._limits = KeyLimits()
        self._open: set[RequestScope] = set()

    async def admit(self) -> None:
        """To be run before each request. Raises KeyLimitError or :class:`ConflictError`."""
        if request.method != "POST" or (request.endpoint or "").rpartition(".")[2] in ENDING_ENDPOINTS:
            return
        scope = request_scope()
        key: ApiKey | None = g.get("api_key")
        scope.request_id = given_request_id()
        self._check_name(scope)
        if key is not None:
            scope.exits.callback(self._limits.enter(key))
        self._open.add(scope)
        scope.exits.callback(partial(self._open.discard, scope))

    def engine_ids(self, names: Collection[str] | None = None) -> set[str]:
        """The engine's ids of what is generated, for the requests of these names; of all of them if None.

        A request is named by the caller's ``X-Request-Id`` or by the id of its answer.
        """
        found: set[str] = set()
        for scope in self._open:
            if scope.generation is None:
                continue
            if names is None or scope.request_id in names or scope.answer_id in names:
                found |= scope.generation.request_ids
        return found

    def _check_name(self, scope: RequestScope) -> None:
        name = scope.request_id
        if name is None:
            return
        if any(other.request_id == name and other.key_name == scope.key_name for other in self._open):
            raise ConflictError(
                f"X-Request-Id: {name!r} is the id of a request that is under way; wait for its answer, or "
                "send this one with another id.",
                param="X-Request-Id",
            )
