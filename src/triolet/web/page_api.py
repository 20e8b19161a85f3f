"""``/``: the page for people, a handful of static files that use the other routes as any client does.

The files hold no secret, and the page asks for a key where one is needed; so they are the only routes beside
liveness that need none. Knows nothing of what the page does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from quart import Blueprint, Response, request
from werkzeug.exceptions import NotFound

__all__ = ["CONTENT_SECURITY_POLICY", "PAGE_ENDPOINTS", "PageFile", "add_page_routes", "read_page_files"]

PAGE_ENDPOINTS = frozenset({"page", "page_file"})

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
"""Files of this server alone, no script or style within the document, and no text that becomes markup."""

_CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "Cache-Control": "no-cache",  # kept, but asked for again: a new version shows at once
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file as it is sent. ``etag`` is a digest of the content."""

    content: bytes
    content_type: str
    etag: str


def read_page_files() -> dict[str, PageFile]:
    """The files of the page by name, wherever the package is installed."""
    found: dict[str, PageFile] = {}
    for entry in files(__package__).joinpath("page").iterdir():
        content = entry.read_bytes()
        content_type = _CONTENT_TYPES["." + entry.name.rpartition(".")[2]]
        found[entry.name] = PageFile(content, content_type, hashlib.sha256(content).hexdigest()[:32])
    return found


def add_page_routes(blueprint: Blueprint) -> None:
    """Add the routes to a blueprint. The document names its files relative to where it is itself."""
    page_files: Mapping[str, PageFile] = read_page_files()

    @blueprint.get("/")
    async def page() -> Response:
        return await _response(page_files["index.html"])

    @blueprint.get("/page/<name>")
    async def page_file(name: str) -> Response:
        if name not in page_files:
            raise NotFound
        return await _response(page_files[name])


async def _response(file: PageFile) -> Response:
    response = Response(file.content, content_type=file.content_type, headers=_HEADERS)
    response.set_etag(file.etag)
    return await response.make_conditional(request)
