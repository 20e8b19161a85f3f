"""Routes that control the engine, for those who hold the admin key: pause, sleep, caches, aborts, drain.

Paths, parameters and answers are those of vLLM where it has them. Knows nothing of keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

import anyio
from msgspec import Meta, Struct
from quart import Blueprint, Response, request

from triolet.core.control import PauseMode, SleepPart
from triolet.errors import ConflictError, InvalidRequestError
from triolet.statistics import EngineState
from triolet.web.admission import Admission
from triolet.web.answer import json_response
from triolet.web.body import decode_json, read_body
from triolet.web.generation import require_serving
from triolet.web.peers import do_everywhere
from triolet.web.serving_engine import ServingEngine
from triolet.web.settings import WebSettings

__all__ = ["CONTROL_ENDPOINTS", "AbortBody", "RestartBody", "add_control_routes"]

CONTROL_ENDPOINTS = frozenset({
    "pause", "resume", "is_paused", "sleep", "wake_up", "is_sleeping", "reset_prefix_cache",
    "abort_requests", "drain", "restart_rank",
})  # fmt: skip
LONGEST_WAIT = 3600.0
MAX_EMPTY_BODY = 4096
MAX_IDS = 4096
"""In one call: as many as other API servers can be told of at once."""


class AbortBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """``POST /abort_requests``: ids of answers or of requests (``X-Request-Id``), or all of them."""

    request_ids: Annotated[list[str], Meta(min_length=1, max_length=MAX_IDS)] | Literal["all"]


class RestartBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """``POST /restart_rank``: which engine, and how many seconds its requests may take to finish."""

    rank: Annotated[int, Meta(ge=0)]
    timeout: Annotated[float, Meta(ge=0, le=LONGEST_WAIT)] = 30.0


def add_control_routes(
    blueprint: Blueprint, engine: ServingEngine, settings: WebSettings, admission: Admission
) -> None:
    """Add the routes to a blueprint."""
    _add_pause_routes(blueprint, engine)
    _add_sleep_routes(blueprint, engine)
    _add_drain_route(blueprint, engine, settings)

    async def abort_here(names: Sequence[str] | None) -> int:
        ids = admission.engine_ids(None if names is None else set(names))
        await engine.abort(ids)
        return len(ids)

    settings.peers.answer({"abort_requests": abort_here})

    @blueprint.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> Response:
        query = await _read_query("reset_running_requests")
        require_serving(engine)
        is_reset = await engine.reset_prefix_cache(
            reset_running_requests=query.flag("reset_running_requests", default=False)
        )
        return json_response({"success": is_reset})

    @blueprint.post("/abort_requests")
    async def abort_requests() -> Response:
        body = decode_json(await read_body(request, max_bytes=settings.max_body_bytes), AbortBody)
        require_serving(engine)
        names = None if body.request_ids == "all" else body.request_ids
        numbers = await do_everywhere(settings.peers, "abort_requests", abort_here, names)
        return json_response({"status": "aborted", "num_aborted": sum(number or 0 for number in numbers)})

    @blueprint.post("/restart_rank")
    async def restart_rank() -> Response:
        body = decode_json(await read_body(request, max_bytes=settings.max_body_bytes), RestartBody)
        require_serving(engine)
        await engine.restart_rank(body.rank, seconds=body.timeout)
        return json_response({"status": "restarted", "rank": body.rank})


def _add_drain_route(blueprint: Blueprint, engine: ServingEngine, settings: WebSettings) -> None:
    async def drain_here(seconds: float) -> bool:
        engine.begin_drain()
        with anyio.move_on_after(seconds):
            await engine.wait_idle()
            return True
        return False

    settings.peers.answer({"drain": drain_here})

    @blueprint.post("/drain")
    async def drain() -> Response:
        """Take no new work from here on; wait up to ``wait`` seconds for what is under way."""
        seconds = (await _read_query("wait")).seconds("wait")
        are_drained = await do_everywhere(settings.peers, "drain", drain_here, seconds, seconds=seconds)
        return json_response({"status": "drained" if all(are_drained) else "draining"})


def _add_pause_routes(blueprint: Blueprint, engine: ServingEngine) -> None:
    @blueprint.post("/pause")
    async def pause() -> Response:
        query = await _read_query("mode", "clear_cache")
        require_serving(engine)
        await engine.pause(
            query.choice("mode", get_args(PauseMode), "abort"),
            clear_cache=query.flag("clear_cache", default=True),
        )
        return json_response({"status": "paused"})

    @blueprint.post("/resume")
    async def resume() -> Response:
        await _read_query()
        require_serving(engine)
        if engine.state is EngineState.DRAINING and not engine.is_paused:
            raise ConflictError(
                "the server drains, and that is for good: restart it to have it take new work"
            )
        await engine.resume()
        return json_response({"status": "resumed"})

    @blueprint.get("/is_paused")
    async def is_paused() -> Response:
        return json_response({"is_paused": engine.is_paused})


def _add_sleep_routes(blueprint: Blueprint, engine: ServingEngine) -> None:
    @blueprint.post("/sleep")
    async def sleep() -> Response:
        query = await _read_query("level", "mode")
        require_serving(engine)
        await engine.sleep(
            int(query.choice("level", ("0", "1", "2"), "1")),
            query.choice("mode", get_args(PauseMode), "abort"),
        )
        return json_response({"status": "sleeping"})

    @blueprint.post("/wake_up")
    async def wake_up() -> Response:
        tags = (await _read_query("tags")).choices("tags", get_args(SleepPart))
        require_serving(engine)
        await engine.wake_up(tags or None)
        return json_response({"status": "asleep" if engine.is_sleeping else "awake"})

    @blueprint.get("/is_sleeping")
    async def is_sleeping() -> Response:
        return json_response({"is_sleeping": engine.is_sleeping})


async def _read_query(*known: str) -> _Query:
    """The parameters; a body that says anything is refused, for what it asks would be passed over."""
    query = _Query(*known)
    body = await read_body(request, max_bytes=MAX_EMPTY_BODY)
    if body.strip() not in (b"", b"{}", b"null"):
        remedy = (
            f"put parameters behind the path, as {request.path}?{known[0]}=…" if known else "leave it out"
        )
        raise InvalidRequestError(f"body: {request.path} takes none; {remedy}", param="body")
    return query


class _Query:
    """The parameters behind the path. Raises :class:`InvalidRequestError` for any that is not ``known``."""

    def __init__(self, *known: str) -> None:
        for name in request.args:
            if name not in known:
                takes = f"it takes {', '.join(known)}" if known else "it takes none"
                raise InvalidRequestError(f"{name}: no parameter of {request.path}; {takes}", param=name)

    def choice(self, name: str, choices: Sequence[str], default: str) -> Any:
        given = request.args.get(name, default)
        return self._checked(name, given, choices)

    def choices(self, name: str, choices: Sequence[str]) -> list[Any]:
        """All values, given one by one or with commas between."""
        given = [value for text in request.args.getlist(name) for value in text.split(",")]
        return [self._checked(name, value, choices) for value in given]

    def flag(self, name: str, *, default: bool) -> bool:
        given = request.args.get(name, str(default)).lower()
        return bool(self._checked(name, given, ("true", "false")) == "true")

    def seconds(self, name: str) -> float:
        try:
            seconds = float(request.args.get(name, "0"))
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds <= LONGEST_WAIT:
            raise InvalidRequestError(
                f"{name}: must be a number of seconds in [0, {LONGEST_WAIT:g}]", param=name
            )
        return seconds

    @staticmethod
    def _checked(name: str, value: str, choices: Sequence[str]) -> str:
        if value not in choices:
            raise InvalidRequestError(
                f"{name}: must be one of {', '.join(choices)}, got {value!r:.60}", param=name
            )
        return value
