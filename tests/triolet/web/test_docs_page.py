"""The page at ``/docs``."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from triolet.web.docs_page import CONTENT_SECURITY_POLICY, docs_page
from triolet.web.openapi import openapi_document
from triolet.web.route_descriptions import ROUTES, Route


class Nesting(HTMLParser):
    """The tags that are open; those that have no end are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_every_route_is_on_it_and_nothing_comes_from_elsewhere() -> None:
    page = docs_page(openapi_document(ROUTES, prefix="/llm"))
    for route in ROUTES:
        assert f"<code>{route.method.upper()} /llm{route.path}</code>" in page
    assert "<script" not in page
    assert re.findall(r'(?:href|src)="([^"]*)"', page) == ["/llm/openapi.json"]
    assert "script-src" not in CONTENT_SECURITY_POLICY
    assert "default-src 'none'" in CONTENT_SECURITY_POLICY
    nesting = Nesting()
    nesting.feed(page)
    assert nesting.open == []


def test_fields_are_told_with_their_types() -> None:
    page = docs_page(openapi_document(ROUTES))
    assert "<code>tokens</code></td><td>list of integer</td>" in page
    assert "<code>stop</code></td><td>string or list of string</td>" in page
    assert "<code>mode</code></td><td>abort, wait, keep</td>" in page


def test_what_is_told_is_text() -> None:
    route = Route(method="get", path="/<b>", summary="<script>", tag="a & b")
    page = docs_page(openapi_document([route]))
    assert "<script>" not in page
    assert "/&lt;b&gt;" in page
