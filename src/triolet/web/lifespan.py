"""``EngineLifespan``: an engine that lives as long as the application that embeds it.

Knows ASGI's lifespan protocol and the engine, nothing of the routes.
"""

from __future__ import annotations

import logging

import anyio
from anyio.abc import TaskStatus

from triolet.web.middleware import ASGIApp, Message, Receive, Scope, Send
from triolet.web.serving_engine import ServingEngine

__all__ = ["EngineLifespan"]

logger = logging.getLogger("triolet.web")


class EngineLifespan:
    """``app.asgi_app = EngineLifespan(app.asgi_app, engine)``, on Quart and on QuartTrio.

    The application starts once the engine is ready, and start-up fails if the engine cannot be started. When
    the application stops, so does the engine, and the host is told only after that. An engine that dies later
    takes nothing of the application with it: its routes answer 503.

    Never run an engine inside ``while_serving``: its tasks would be cancelled across the ``yield``.
    """

    def __init__(self, app: ASGIApp, engine: ServingEngine) -> None:
        self._app = app
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The host may cancel this task as soon as it is told, so the engine has to be down by then.
        held: list[Message] = []

        async def holding_send(message: Message) -> None:
            if message["type"].startswith("lifespan.shutdown"):
                held.append(message)
            else:
                await send(message)

        async with anyio.create_task_group() as group:
            failure = await group.start(self._run_engine)
            if failure is None:
                await self._app(scope, receive, holding_send)
                self._engine.stop()
        if failure is not None:
            # Not within the group: the host looks whether this task has failed as soon as it is told.
            await receive()
            await send({"type": "lifespan.startup.failed", "message": str(failure)})
        for message in held:
            await send(message)

    async def _run_engine(self, *, task_status: TaskStatus[Exception | None]) -> None:
        ready = _Ready(task_status)
        try:
            await self._engine.run(task_status=ready)
        except Exception as error:
            if ready.is_started:
                logger.error("the engine has died; its routes answer 503 from now on", exc_info=error)
            else:
                task_status.started(error)


class _Ready(TaskStatus[None]):
    """Passes on that the engine is ready, and remembers it."""

    def __init__(self, outer: TaskStatus[Exception | None]) -> None:
        self._outer = outer
        self.is_started = False

    def started(self, value: None = None) -> None:
        self.is_started = True
        self._outer.started(None)
