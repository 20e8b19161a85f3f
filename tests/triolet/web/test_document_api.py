"""The description of the routes, over HTTP."""

from __future__ import annotations

import pytest
from quart import Quart
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import serving

from triolet.web import blueprint

pytestmark = pytest.mark.anyio


async def test_it_is_served_to_programs_and_people(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        document = (await running.client.get("/openapi.json")).json()
        page = await running.client.get("/docs")
    assert document["servers"] == [{"url": "/"}]
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert "POST /v1/chat/completions" in page.text


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_it_knows_the_prefix_of_a_blueprint(anyio_backend: str) -> None:
    app = Quart(__name__, static_folder=None)
    app.register_blueprint(blueprint(FakeEngine()), url_prefix="/llm")
    client = app.test_client()
    document = await (await client.get("/llm/openapi.json")).get_json()
    assert document["servers"] == [{"url": "/llm"}]
    assert "/llm/openapi.json" in await (await client.get("/llm/docs")).get_data(as_text=True)
