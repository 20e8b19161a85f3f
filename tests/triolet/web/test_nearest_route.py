"""What somebody meant who asked for a route that is not there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.web.nearest_route import nearest_route

ROUTES = {"/v1/chat/completions", "/v1/completions", "/v1/models", "/tokenize", "/health"}


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("//v1//models", "/v1/models"),
        ("/v1/tokenize", "/tokenize"),
        ("/api/v1/completions", "/v1/completions"),
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/healthz", "/health"),
        ("/", None),
        ("/favicon.ico", None),
        ("/x" * 1000, None),
    ],
)
def test_the_route_that_was_meant(path: str, meant: str | None) -> None:
    assert nearest_route(path, ROUTES) == meant


@given(st.text())
def test_anything_may_be_asked_for(path: str) -> None:
    assert nearest_route(path, ROUTES) in {None, *ROUTES}
