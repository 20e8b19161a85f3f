"""Routes for those who run the server: its health, its load, its metrics."""

from __future__ import annotations

from dataclasses import asdict

from quart import Blueprint, Response

import triolet
from triolet.metrics import CONTENT_TYPE, render_metrics
from triolet.web.answer import json_response
from triolet.web.serving_engine import ServingEngine
from triolet.web.settings import WebSettings

__all__ = ["add_operation_routes"]


def add_operation_routes(blueprint: Blueprint, engine: ServingEngine, settings: WebSettings) -> None:
    """Add the routes to a blueprint."""

    @blueprint.get("/live")
    async def live() -> Response:
        """200 as long as the event loop turns."""
        return json_response({"status": "live"})

    @blueprint.get("/ready")
    async def ready() -> Response:
        """200 while new work is taken, by whichever ranks there are."""
        health = engine.health()
        if health.is_serving and not settings.is_leaving():
            return json_response({"status": "ready"})
        status = "draining" if health.is_serving else health.state.value
        content = {"status": status, "phase": health.phase, "phase_seconds": health.phase_seconds}
        response = json_response(content, status=503)
        response.headers["Retry-After"] = "1"
        return response

    @blueprint.get("/health")
    async def health() -> Response:
        """The state in detail, of each rank too; 503 unless the engine serves."""
        health = engine.health()
        content = asdict(health) | {"is_paused": None, "is_sleeping": None}
        if health.is_serving:
            content |= {"is_paused": engine.is_paused, "is_sleeping": engine.is_sleeping}
        return json_response(content, status=200 if health.is_serving else 503)

    @blueprint.get("/metrics")
    async def metrics() -> Response:
        await engine.refresh_statistics()
        text = render_metrics(engine.statistics(), model_name=engine.model_names[0])
        return Response(text, content_type=CONTENT_TYPE)

    @blueprint.get("/load")
    async def load() -> Response:
        """How busy the engine is, for those who choose among servers."""
        await engine.refresh_statistics()
        scheduler = engine.statistics().scheduler
        return json_response(
            {
                "server_load": scheduler.num_running + scheduler.num_waiting,
                "num_requests_running": scheduler.num_running,
                "num_requests_waiting": scheduler.num_waiting,
                "kv_cache_usage": scheduler.kv_usage,
            }
        )

    @blueprint.get("/version")
    async def version() -> Response:
        return json_response({"version": triolet.__version__})
