"""Every route is described, and every description is of a route."""

from __future__ import annotations

import re

import msgspec
import pytest
from quart import Quart
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import serving

from triolet.web import blueprint
from triolet.web.route_descriptions import ROUTES

pytestmark = pytest.mark.anyio
ADMIN = {"Authorization": "Bearer root"}


def test_the_descriptions_are_those_of_the_routes() -> None:
    app = Quart(__name__, static_folder=None)
    app.register_blueprint(blueprint(FakeEngine()))
    registered = {
        (method.lower(), re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule))
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    assert {(route.method, route.path) for route in ROUTES} == registered


@pytest.mark.parametrize("route", [route for route in ROUTES if route.body], ids=lambda route: route.path)
async def test_the_examples_work(anyio_backend_name: str, route: object) -> None:
    assert msgspec.convert(route.example, route.body)  # type: ignore[attr-defined]
    async with serving(FakeEngine(), anyio_backend_name, admin_api_key="root") as running:
        response = await running.client.post(route.path, json=route.example, headers=ADMIN)  # type: ignore[attr-defined]
    assert response.status_code == 200, response.text


async def test_so_do_the_parameters(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name, admin_api_key="root") as running:
        for route in ROUTES:
            if route.tag != "control" or not route.parameters:
                continue
            for parameter in route.parameters:
                schema = parameter.schema.get("items", parameter.schema)
                value = schema.get("enum", ["true" if schema.get("type") == "boolean" else 1])[0]
                call = f"{route.path}?{parameter.name}={value}"
                assert (await running.client.post(call, headers=ADMIN)).status_code == 200, call
