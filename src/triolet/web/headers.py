"""Request headers that mean something: ``X-Request-Id``, ``X-Request-Timeout``, ``X-data-parallel-rank``."""

from __future__ import annotations

import re
from typing import cast

from quart import request

from triolet.errors import InvalidRequestError
from triolet.request import MAX_RANK, MAX_SECONDS
from triolet.web.middleware import Scope

__all__ = ["echoable_id", "given_header", "given_rank", "given_request_id", "given_timeout"]

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_RANK = re.compile(r"[0-9]{1,4}")
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


def given_header(name: bytes) -> str | None:
    """The first header of this name, which is in lower case.

    As the server has it: the framework raises and catches an exception for each one that is not there.
    """
    headers = cast(Scope, request.scope)["headers"]
    return next((value.decode("latin-1") for key, value in headers if key == name), None)


def given_request_id() -> str | None:
    """The caller's name for the request; None if it gave none, or one that cannot be echoed."""
    return echoable_id(given_header(b"x-request-id") or "")


def echoable_id(given: str) -> str | None:
    """A name for a request as it was given; None for one that cannot be echoed."""
    return given if _REQUEST_ID.fullmatch(given) else None


def given_timeout() -> float | None:
    """Seconds from arrival to the end of the answer. Raises :class:`InvalidRequestError`."""
    given = given_header(b"x-request-timeout")
    if given is None:
        return None
    seconds = float(given) if _SECONDS.fullmatch(given) else 0.0
    if not 0 < seconds <= MAX_SECONDS:
        raise InvalidRequestError(
            f"X-Request-Timeout: must be a number of seconds, above 0 and up to {MAX_SECONDS:g}, "
            f"got {given!r:.60}",
            param="X-Request-Timeout",
        )
    return seconds


def given_rank() -> int | None:
    """The data parallel rank that is to serve the request. Raises :class:`InvalidRequestError`."""
    given = given_header(b"x-data-parallel-rank")
    if given is None:
        return None
    if not _RANK.fullmatch(given) or int(given) > MAX_RANK:
        raise InvalidRequestError(
            f"X-data-parallel-rank: must be the number of a rank, 0 or more, got {given!r:.60}",
            param="X-data-parallel-rank",
        )
    return int(given)
