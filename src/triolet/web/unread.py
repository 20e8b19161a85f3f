"""Requests that are refused before even an HTTP parser has seen them: from bytes to bytes.

While hundreds of requests a second are refused, parsing them, a task for each and the states of its
connection cost ten times what is done here. This takes only what is plainly a request as clients write them,
and leaves all else to the parser. Knows how a request and an answer are written, not when one is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from http import HTTPStatus

from triolet.web.early_refusal import EarlyRefusals, Refusal
from triolet.web.request_scope import make_id

__all__ = ["UnreadRequests"]

_HEADER = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}:[\t\x20-\x7e\x80-\xff]*\r\n"
_HEAD = re.compile(rb"POST (/[!-~]{1,100}) HTTP/1\.1\r\n((?:%b)+)\r\n" % _HEADER)
"""Source: RFC 9112, sections 3 and 5, without what is allowed and hardly ever sent."""
_PARSED_ONLY = frozenset({b"transfer-encoding", b"upgrade", b"content-encoding"})
"""Headers that change how a request is to be read."""


class UnreadRequests:
    """Those on one connection. ``more_headers`` are those that every answer gets."""

    def __init__(
        self, refusals: EarlyRefusals, more_headers: Callable[[], Iterable[tuple[bytes, bytes]]]
    ) -> None:
        self._refusals = refusals
        self._more_headers = more_headers
        self._num_missing = 0
        self._answer = b""

    @property
    def is_waiting(self) -> bool:
        """Whether more of a body is to come before its answer goes out."""
        return self._num_missing > 0

    def take(self, data: bytes) -> tuple[bytes, bytes] | None:
        """What is to be written, nothing while a body is still coming, and the bytes behind the request.

        None where the bytes are not for here. Unless ``is_waiting`` they are where a request begins.
        """
        if not self.is_waiting:
            return self._begin(data)
        if not data:  # the client has left
            self._num_missing = 0
            return None
        return self._drop(data)

    def _begin(self, data: bytes) -> tuple[bytes, bytes] | None:
        error = self._refusals.why_full()
        head = _HEAD.match(data) if error is not None else None
        if error is None or head is None:
            return None
        path = head[1].decode()
        headers = _headers(head[2])
        if path not in self._refusals.paths or headers is None:
            return None
        refusal = self._refusals.refuse(error, path, headers, make_id())
        if refusal is None:
            return None
        self._answer = _written(refusal, self._more_headers())
        self._num_missing = int(headers[b"content-length"])
        return self._drop(data[head.end() :])

    def _drop(self, data: bytes) -> tuple[bytes, bytes]:
        rest = data[self._num_missing :]
        self._num_missing -= len(data) - len(rest)
        return (b"" if self._num_missing else self._answer), rest


def _headers(block: bytes) -> dict[bytes, str] | None:
    """By name in lower case; None where there is something that the parser has to look at."""
    lines = block[:-2].split(b"\r\n")
    parts = [line.partition(b":") for line in lines]
    headers = {name.lower(): value.strip(b" \t").decode("latin-1") for name, _, value in parts}
    is_plain = (
        len(headers) == len(lines)
        and b"host" in headers
        and headers.get(b"connection", "keep-alive").lower() == "keep-alive"
        and _PARSED_ONLY.isdisjoint(headers)
    )
    return headers if is_plain else None


def _written(refusal: Refusal, more_headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    status = refusal.status
    lines = [b"%b: %b\r\n" % header for header in [*refusal.headers, *more_headers]]
    first = b"HTTP/1.1 %d %b\r\n" % (status, HTTPStatus(status).phrase.encode())
    return b"".join([first, *lines, b"\r\n", refusal.body])
