"""Calls that somebody might make of any route: seeded changes of method, path, query and headers."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from urllib.parse import quote

from triolet.web.route_descriptions import ROUTES, Route

__all__ = ["Call", "random_call"]

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "BREW")
_TEXTS = (
    "", " ", "0", "1", "-1", "1.5", "1e999", "nan", "inf", "1" * 40, "9" * 4400, "٣", "²", "true", "FALSE",
    "yes", "abort", "asc", "desc", "weights,kv_cache", ",", "null", "None", "letters", "fake/model", "resp_1",
    "msg_1_0", "..", "../../etc/passwd", "%2e%2e", "\0", "\r\nX: y", "é", "🙂", "\udcff", "a b",
    "'\"<script>", "{}", "[1]", "main.js", "x" * 3000,
)  # fmt: skip
_SEGMENTS = ("", ".", "..", "%00", "%2f", "%ff", "%", "%zz", ";a=b", "//", "/", "é", "v1", "~", "x" * 2000)
_HEADERS = (
    "Authorization", "X-Api-Key", "X-Request-Id", "X-Request-Timeout", "X-data-parallel-rank", "Content-Type",
    "Content-Encoding", "Accept", "Accept-Encoding", "Range", "If-None-Match", "If-Modified-Since",
    "If-Range", "Origin", "Access-Control-Request-Method", "Access-Control-Request-Headers", "Cookie",
    "Forwarded", "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Prefix", "traceparent", "tracestate",
    "Referer", "X-HTTP-Method-Override", "anthropic-version", "User-Agent", "Upgrade",
    "HTTP2-Settings", "Expect",
)  # fmt: skip
_VALUES = (
    b"", b"0", b"1", b"-1", b"0.001", b"1e3", b"nan", b"1" * 5000, b"99999", b"\xff\xfe", b"\xc3\xa9",
    b"Bearer", b"Bearer ", b"Bearer root", b"bearer root root", b"Basic cm9vdDo=", b"root",
    b"application/json", b"text/plain; charset=utf-16", b"multipart/form-data; boundary=x", b"gzip",
    b"identity", b"bytes=0-1", b"bytes=9-1", b"bytes=-1,-2", b"*", b'"abc"', b"Thu, 01 Jan 1970 00:00:00 GMT",
    b"http://evil.example", b"null", b"POST", b"a=b; c", b"00-" + b"0" * 32 + b"-" + b"1" * 16 + b"-01",
    b"100-continue", b"h2c", b"websocket", b"a" * 128, b"a" * 129, b"[::1]:80", b"x y", b"%00",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """What goes over the wire. ``target`` is the path and the query, percent-encoded."""

    method: str
    target: bytes
    headers: tuple[tuple[str, bytes], ...]
    body: bytes


def random_call(source: random.Random, response_id: str) -> Call:
    """A good call of some route, but for some changes. ``response_id`` is one that can be asked for."""
    route = source.choice(ROUTES)
    method = source.choice(_METHODS) if source.random() < 0.1 else route.method.upper()
    body = b"" if route.example is None else json.dumps(route.example).encode()
    if source.random() < 0.05:
        body = source.choice((b"", b"{}", b"null", b"[", b"x" * 5000))
    target = _path(source, route, response_id) + _query(source, route)
    return Call(method, target.encode("ascii"), tuple(_headers(source)), body)


def _path(source: random.Random, route: Route, response_id: str) -> str:
    path = route.path
    if route.method != "delete" and source.random() < 0.7:
        path = path.replace("{response_id}", response_id)
    path = re.sub(r"\{\w+\}", lambda _: _quoted(source.choice(_TEXTS)), path)
    if source.random() < 0.15:
        start = source.randrange(1, len(path) + 1)
        path = path[:start] + quote(source.choice(_SEGMENTS), safe="%/;.~=") + path[start:]
    return path


def _query(source: random.Random, route: Route) -> str:
    names = [parameter.name for parameter in route.parameters if parameter.place == "query"]
    names += ["stream", "starting_after", "nonsense", "", "é[]"]
    pairs = [(source.choice(names), source.choice(_TEXTS)) for _ in range(source.choice((0, 0, 1, 1, 2, 5)))]
    query = "&".join(f"{_quoted(name)}={_quoted(value)}" for name, value in pairs)
    if source.random() < 0.05:
        query += source.choice(("&", "&&=", "=", "?", "%", "%ff=%00", "&" * 500))
    return f"?{query}" if query else ""


def _headers(source: random.Random) -> list[tuple[str, bytes]]:
    found = [] if source.random() < 0.1 else [("Authorization", b"Bearer root")]
    num_more = source.choice((0, 1, 1, 2, 4))
    return found + [(source.choice(_HEADERS), source.choice(_VALUES).strip()) for _ in range(num_more)]


def _quoted(text: str) -> str:
    return quote(text, safe="", errors="surrogateescape")
