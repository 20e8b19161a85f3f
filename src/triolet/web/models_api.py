"""``GET /v1/models`` and ``GET /v1/models/{id}``, for clients of either API."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from quart import Blueprint, Response

from triolet.statistics import EngineState
from triolet.web.answer import check_model, json_response
from triolet.web.serving_engine import ServingEngine
from triolet.web.settings import WebSettings

__all__ = ["add_model_routes"]

NOT_LOADED = frozenset({EngineState.STARTING, EngineState.DEAD})


def add_model_routes(blueprint: Blueprint, engine: ServingEngine, settings: WebSettings) -> None:
    """Add the routes to a blueprint."""
    created = int(settings.clock())

    def card(name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "triolet",
            "max_model_len": None if engine.state in NOT_LOADED else engine.max_model_len,
            # What Anthropic's clients look for.
            "type": "model",
            "display_name": name,
            "created_at": datetime.fromtimestamp(created, UTC).isoformat(),
        }

    @blueprint.get("/v1/models")
    async def models() -> Response:
        names = engine.model_names
        page = {"has_more": False, "first_id": names[0], "last_id": names[-1]}
        return json_response({"object": "list", "data": [card(name) for name in names], **page})

    # Names of models may contain slashes.
    @blueprint.get("/v1/models/<path:name>")
    async def model(name: str) -> Response:
        return json_response(card(check_model(engine, name)))
