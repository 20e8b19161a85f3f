"""The API key: every route but ``/live`` asks for it when one is set.

Knows the ``Authorization`` header and nothing of the routes.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Awaitable, Callable

from quart import request

from triolet.errors import AuthenticationError

__all__ = ["ENVIRONMENT_VARIABLE", "caller_identity", "key_check", "resolve_api_key"]

ENVIRONMENT_VARIABLE = "TRIOLET_API_KEY"
OPEN_ENDPOINT = "live"


def resolve_api_key(given: str | None) -> str | None:
    """The key to ask for: the one given, else that of the environment, else none."""
    return given or os.environ.get(ENVIRONMENT_VARIABLE) or None


def caller_identity() -> str:
    """Who asks, as far as their key tells; nothing can be found out about the key from it."""
    given = request.headers.get("Authorization", "")
    return hashlib.sha256(given.encode()).hexdigest()[:16] if given else ""


def key_check(api_key: str) -> Callable[[], Awaitable[None]]:
    """A function to run before each request; raises :class:`AuthenticationError` without the right key.

    The comparison takes the same time wherever the keys differ.
    """
    expected = api_key.encode()

    async def check() -> None:
        if (request.endpoint or "").rpartition(".")[2] == OPEN_ENDPOINT:
            return
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given:
            raise AuthenticationError("An API key is needed: send it as 'Authorization: Bearer <key>'.")
        if not hmac.compare_digest(given.strip().encode("latin-1", errors="replace"), expected):
            raise AuthenticationError("The API key is wrong.")

    return check
