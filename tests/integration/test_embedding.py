"""The engine inside somebody's own Quart application, as the guide shows it, on both event loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import httpx
import hypercorn.asyncio
import hypercorn.trio
import pytest
from hypercorn.config import Config
from quart import Quart, request
from quart_trio import QuartTrio
from tests.fakes import FakeRunner, fake_client

from triolet import Engine, SamplingParams
from triolet.statistics import EngineState
from triolet.web import EngineLifespan, WebSettings, blueprint
from triolet.web.listener import open_listener

pytestmark = pytest.mark.anyio


def make_app(engine: Engine, backend: str) -> Quart:
    """An application with routes of its own beside the OpenAI ones, all over one engine."""
    app = QuartTrio(__name__) if backend == "trio" else Quart(__name__)
    app.register_blueprint(blueprint(engine, WebSettings(api_key="secret")), url_prefix="/llm")
    app.asgi_app = EngineLifespan(app.asgi_app, engine)  # type: ignore[assignment,method-assign,arg-type]

    @app.post("/shout")
    async def shout() -> dict[str, str]:
        prompt = (await request.get_data(as_text=True)).lower()
        text = ""
        async for output in engine.generate(prompt, SamplingParams(max_tokens=5)):
            text = output.outputs[0].text
        return {"text": text.upper()}

    return app


async def test_own_routes_and_openai_routes_share_one_engine(
    anyio_backend_name: str, byte_model: Path
) -> None:
    engine = Engine(model=str(byte_model), client_factory=fake_client(FakeRunner()))
    app = make_app(engine, anyio_backend_name)
    listener = open_listener("127.0.0.1", 0)
    port = listener.getsockname()[1]
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    stop = anyio.Event()
    serve: Any = hypercorn.trio.serve if anyio_backend_name == "trio" else hypercorn.asyncio.serve

    async def run() -> None:
        await serve(app, config, shutdown_trigger=stop.wait)

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", verify=False) as client:
            own = await client.post("/shout", content="ABC", timeout=30)
            body = {"prompt": "abc", "max_tokens": 5}
            closed = await client.post("/llm/v1/completions", json=body)
            headers = {"Authorization": "Bearer secret"}
            opened = await client.post("/llm/v1/completions", json=body, headers=headers)
            health = await client.get("/llm/health", headers=headers)
        stop.set()
    assert own.json() == {"text": "DEFGH"}
    assert closed.status_code == 401
    assert opened.json()["choices"][0]["text"] == "defgh"
    assert health.json()["state"] == "ready"
    assert engine.state is EngineState.STOPPED
