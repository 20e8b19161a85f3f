"""All responses that can be asked for: those that are written or kept here, and those of other servers.

Whoever asks sees the responses of the same API key only. Knows nothing of HTTP or of how responses are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from triolet.cluster.launcher_link import NoAnswer
from triolet.errors import RequestError
from triolet.web.generation import Generation
from triolet.web.peers import do_everywhere
from triolet.web.responses_background import ReadPage
from triolet.web.responses_log import EventLogs, EventPage
from triolet.web.responses_store import ResponseStore, StoredResponse
from triolet.web.serving_engine import ServingEngine
from triolet.web.settings import WebSettings

__all__ = [
    "ResponseDirectory",
    "ResponseNotFoundError",
    "ResponseOutOfReachError",
    "Running",
    "not_found",
]


MAX_PIECE_BYTES = 1 << 16
"""Of events that are sent at a time: of a reader that does not read no more is kept beside the log."""


class ResponseNotFoundError(RequestError):
    """There is no such response, no longer, or not for this caller."""

    status = 404
    code = "response_not_found"


class ResponseOutOfReachError(RequestError):
    """A server that may have the response does not give it."""

    status = 503
    error_type = "server_error"
    code = "response_out_of_reach"


@dataclass(slots=True)
class Running:
    """A response that is being written. ``show()`` is what there is of it, ``show(status)`` if that ends it.

    ``is_stored``: it can be found, and is kept once it has ended, unless it is deleted before. What is
    written in the background is ended then: nobody would ever see it.
    """

    owner: str
    is_stored: bool
    generation: Generation
    items: Sequence[dict[str, Any]]
    show: Callable[..., dict[str, Any]]
    is_background: bool = False

    def as_stored(self, response: dict[str, Any]) -> StoredResponse:
        encode = msgspec.json.encode
        return StoredResponse(self.owner, encode(response), encode(self.items))


class ResponseDirectory:
    """The responses of one engine. ``engine`` is told of those that are cancelled.

    ``logs`` are the events of some, and are forgotten with them.
    """

    def __init__(self, engine: ServingEngine, settings: WebSettings) -> None:
        self._store = ResponseStore(settings.response_store_size, settings.response_store_bytes)
        self._engine = engine
        self.logs = EventLogs(settings.response_store_bytes)
        self._peers = settings.peers
        self._is_leaving = settings.is_leaving
        self._farewells = settings.farewells
        self._running: dict[str, Running] = {}
        settings.peers.answer(
            {
                "find_response": self._find_here,
                "delete_response": self._delete_here,
                "cancel_response": self._cancel_here,
                "read_response_events": self._read_here,
            }
        )

    @property
    def is_off(self) -> bool:
        """Whether nothing is kept."""
        return self._store.is_off

    def begin(self, response_id: str, running: Running) -> Callable[[], None]:
        """A response is written from here on; to be called when that has ended: what is returned.

        Where it is in the background, and its events are not kept, somebody will ask how it has ended.
        """
        self._running[response_id] = running
        if running.is_background and self.logs.find(response_id) is None:
            self._farewells.owe(response_id)

        def end() -> None:
            if self._running.pop(response_id, None) is not None:
                self._farewells.tell(response_id)

        return end

    def keep(self, response: dict[str, Any]) -> bool:
        """A response that was written has ended like this; whether it is kept."""
        response_id = response["id"]
        running = self._running.pop(response_id)
        is_kept = running.is_stored and self._store.put(response_id, running.as_stored(response))
        if not (is_kept and self._is_leaving()):
            self._farewells.tell(response_id)
        return is_kept

    async def find(self, response_id: str, owner: str, *, param: str) -> StoredResponse:
        """Raises :class:`ResponseNotFoundError` with ``param``."""
        answers = [await self._find_here(response_id, owner)]
        if answers == [None]:
            answers = await self._peers.call_peers("find_response", response_id, owner)
        return _stored(response_id, answers, param)

    async def delete(self, response_id: str, owner: str) -> None:
        """Forget a response. Raises :class:`ResponseNotFoundError`."""
        answers = await do_everywhere(self._peers, "delete_response", self._delete_here, response_id, owner)
        if not any(answers):
            raise _missing(response_id, answers, "response_id")

    async def cancel(self, response_id: str, owner: str) -> StoredResponse:
        """End a response that is written, and → what there is of it; one that has ended stays as it is.

        Raises :class:`ResponseNotFoundError`.
        """
        answers = await do_everywhere(self._peers, "cancel_response", self._cancel_here, response_id, owner)
        return _stored(response_id, answers, "response_id")

    async def events(self, response_id: str, owner: str) -> ReadPage | None:
        """How to read the events of a response that was found, here or elsewhere; None if nobody has them.

        They are lost where the server that has them gives no answer any more.
        """
        log = self.logs.find(response_id)
        if log is not None:
            return partial(log.page, max_bytes=MAX_PIECE_BYTES)

        async def read(start: int, seconds: float) -> EventPage:
            answers = await self._peers.call_peers(
                "read_response_events", response_id, owner, start, seconds, seconds=seconds
            )
            return next((EventPage(*answer) for answer in answers if answer), EventPage([], True, True))

        return None if (await read(0, 0.0)).is_lost else read

    async def _read_here(self, response_id: str, owner: str, start: int, seconds: float) -> list[Any] | None:
        """Events of a response, which another server can be sent."""
        log = self.logs.find(response_id)
        if log is None or await self._find_here(response_id, owner) is None:
            return None
        return list(await log.page(start, seconds, MAX_PIECE_BYTES))

    async def _find_here(self, response_id: str, owner: str) -> list[Any] | None:
        """Owner, response and items: plain values, which another server can be sent."""
        running = self._stored_running(response_id, owner)
        if running is not None:
            return _plain(running.as_stored(running.show()))
        stored = self._store.find(response_id, owner)
        if stored is None:
            return None
        self._farewells.tell(response_id)
        return _plain(stored)

    async def _delete_here(self, response_id: str, owner: str) -> bool:
        running = self._stored_running(response_id, owner)
        if running is None and not self._store.delete(response_id, owner):
            return False
        self.logs.lose(response_id)
        self._farewells.tell(response_id)
        if running is not None:
            running.is_stored = False
            if running.is_background:
                await self._engine.abort(running.generation.request_ids)
        return True

    async def _cancel_here(self, response_id: str, owner: str) -> list[Any] | None:
        running = self._running.get(response_id)
        if running is None or running.owner != owner:
            return await self._find_here(response_id, owner)
        self._farewells.tell(response_id)
        await self._engine.abort(running.generation.request_ids)
        return _plain(running.as_stored(running.show("cancelled")))

    def _stored_running(self, response_id: str, owner: str) -> Running | None:
        running = self._running.get(response_id)
        return running if running is not None and running.owner == owner and running.is_stored else None


def _plain(stored: StoredResponse) -> list[Any]:
    return [stored.owner, stored.response, stored.items]


def _stored(response_id: str, answers: Sequence[Any], param: str) -> StoredResponse:
    """The first that was found."""
    for answer in filter(None, answers):
        return StoredResponse(*answer)
    raise _missing(response_id, answers, param)


def _missing(response_id: str, answers: Iterable[Any], param: str) -> RequestError:
    """What to say of a response that nobody has; where somebody did not answer, it may be there."""
    reasons = [answer.reason for answer in answers if isinstance(answer, NoAnswer)]
    if reasons:
        return ResponseOutOfReachError(
            f"{param}: the response {response_id[:100]!r} is not here, and another API server, which may "
            f"have it, gives no answer: {reasons[0]}",
            param=param,
        )
    return not_found("response", response_id, param)


def not_found(kind: str, name: str, param: str) -> ResponseNotFoundError:
    """A response or an item that is not there."""
    return ResponseNotFoundError(
        f"{param}: there is no {kind} {name[:100]!r} here: it was never stored, it was deleted, or it "
        "has made room for others; send its conversation as input",
        param=param,
    )
