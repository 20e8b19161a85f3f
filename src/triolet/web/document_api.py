"""``/openapi.json`` and ``/docs``: what the routes are, for programs and for people."""

from __future__ import annotations

from quart import Blueprint, Response, request

from triolet.web.answer import json_response
from triolet.web.docs_page import CONTENT_SECURITY_POLICY, docs_page
from triolet.web.openapi import openapi_document
from triolet.web.route_descriptions import ROUTES

__all__ = ["add_document_routes"]


def add_document_routes(blueprint: Blueprint, *, has_page: bool) -> None:
    """Add the routes to a blueprint. ``has_page``: the page is among what is described."""
    routes = [route for route in ROUTES if has_page or route.tag != "page"]

    @blueprint.get("/openapi.json")
    async def openapi() -> Response:
        prefix = request.path.removesuffix("/openapi.json")
        return json_response(openapi_document(routes, prefix=prefix))

    @blueprint.get("/docs")
    async def docs() -> Response:
        document = openapi_document(routes, prefix=request.path.removesuffix("/docs"))
        response = Response(docs_page(document), content_type="text/html; charset=utf-8")
        response.headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response
