"""The API keys: which route asks for which kind of key, and who is asking.

Knows the headers that keys come in and nothing of what the routes do.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Awaitable, Callable, Set
from pathlib import Path

from quart import g, request

from triolet.errors import AuthenticationError, PermissionDeniedError
from triolet.web.api_keys import ApiKey, parse_keys
from triolet.web.headers import given_header
from triolet.web.key_ring import KeyRing
from triolet.web.page_api import PAGE_ENDPOINTS
from triolet.web.request_scope import request_scope
from triolet.web.settings import WebSettings

__all__ = [
    "ADMIN_ENVIRONMENT_VARIABLE",
    "ENVIRONMENT_VARIABLE",
    "caller_identity",
    "caller_key",
    "given_key",
    "key_check",
    "key_option",
    "make_key_ring",
    "resolve_api_key",
]

ENVIRONMENT_VARIABLE = "TRIOLET_API_KEY"
ADMIN_ENVIRONMENT_VARIABLE = "TRIOLET_ADMIN_API_KEY"
OPEN_ENDPOINTS = frozenset({"live"}) | PAGE_ENDPOINTS
"""What tells nothing that a key is to keep."""
NAMED_OR_SEVERAL = re.compile(r":|\S\s+\S")


def resolve_api_key(given: str | None, variable: str = ENVIRONMENT_VARIABLE) -> str | None:
    """The keys to ask for: those given, else those of the environment, else none."""
    return given or os.environ.get(variable) or None


def key_option(given: str | None, file: Path | None) -> str:
    """What a ``curl`` command for a shell needs to send a key, and a space; empty if none is asked for.

    It shows no key: it takes the one in the environment if that is the one, and else asks for it.
    """
    key = resolve_api_key(given)
    if key is None and file is None:
        return ""
    sent = "$(printf 'API key: ' >&2; head -n 1)"
    if given is None and key is not None and not NAMED_OR_SEVERAL.search(key):
        sent = f"${{{ENVIRONMENT_VARIABLE}:-{sent}}}"
    return f'-H "Authorization: Bearer {sent}" '


def make_key_ring(settings: WebSettings) -> KeyRing:
    """The keys of the settings. Raises :class:`UsageError` naming the option that is wrong."""
    fixed = parse_keys(settings.api_key, option="api_key")
    admins = parse_keys(settings.admin_api_key, option="admin_api_key", is_admin=True)
    return KeyRing(fixed + admins, settings.api_key_file)


def caller_identity(user: str | None = None) -> str:
    """Who asks: the name of the key; where none is asked for, ``user``, or else a digest of what was sent.

    Whoever has a key gets its share, whatever users they name.
    """
    key: ApiKey | None = g.get("api_key")
    if key is not None:
        return key.name
    if user:
        return user
    given = given_header(b"authorization") or given_header(b"x-api-key") or ""
    return hashlib.sha256(given.encode(errors="surrogateescape")).hexdigest()[:16] if given else ""


def caller_key() -> str:
    """The digest of the key that was given, whatever it is called; empty where none is asked for."""
    key: ApiKey | None = g.get("api_key")
    return "" if key is None else key.digest.hex()


def key_check(keys: KeyRing, admin_endpoints: Set[str]) -> Callable[[], Awaitable[None]]:
    """A function to run before each request; ``admin_endpoints`` need a key of that kind.

    Raises :class:`AuthenticationError` without a right key, :class:`PermissionDeniedError` where it does not
    open this route.
    """

    async def check() -> None:
        endpoint = (request.endpoint or "").rpartition(".")[2]
        if endpoint in admin_endpoints:
            _check_admin(keys)
        elif endpoint not in OPEN_ENDPOINTS and not keys.is_open:
            _identify(_required_key(keys))

    return check


def _check_admin(keys: KeyRing) -> None:
    if not keys.has_admin:
        raise PermissionDeniedError(
            "This route controls the server and needs an admin key, and none is set: start the server with "
            f"--admin-api-key or {ADMIN_ENVIRONMENT_VARIABLE}."
        )
    key = _required_key(keys)
    _identify(key)
    if not key.is_admin:
        raise PermissionDeniedError("This route controls the server: it needs an admin key.")


def _identify(key: ApiKey) -> None:
    g.api_key = key
    request_scope().key_name = key.name


def _required_key(keys: KeyRing) -> ApiKey:
    headers = request.headers
    given = given_key(headers.get("Authorization", ""), headers.get("X-Api-Key", ""))
    if not given:
        raise AuthenticationError(
            "An API key is needed: send it as 'Authorization: Bearer <key>', or as 'X-Api-Key: <key>'."
        )
    key = keys.find(given)
    if key is None:
        raise AuthenticationError("The API key is wrong.")
    return key


def given_key(authorization: str, api_key: str) -> str:
    """The key in these headers; clients that send one of each kind mean the bearer's."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() == "bearer" and given.strip():
        return given.strip()
    return api_key.strip()
