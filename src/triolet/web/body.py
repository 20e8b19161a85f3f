"""The bytes of a request body, bounded in size and in time, and JSON decoding that names the wrong field.

Knows nothing of what the fields mean.
"""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import accumulate
from typing import TypeVar, cast

import anyio
import msgspec
from quart import Request
from werkzeug.exceptions import RequestEntityTooLarge

from triolet.errors import InvalidRequestError, RequestTooLargeError, TrioletError
from triolet.web.middleware import Scope
from triolet.web.request_scope import SCOPE_KEY

__all__ = ["BodyTimeoutError", "decode_json", "discard_body", "invalid_field", "read_body"]

BODY_TIMEOUT_SECONDS = 60.0
DISCARD_BYTES = 64 * 2**20
DISCARD_SECONDS = 5.0
"""How much of a body that nobody wants is read and dropped, and for how long."""

MAX_DEPTH = 200
"""Lists and objects inside each other. What is decoded is also compared, and written inside more of them, and
for each of these there is a depth too many."""

T = TypeVar("T")

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_AT_PATH = re.compile(r"^(?P<problem>.*) - at `(?:key in )?\$(?P<path>.*)`$", re.DOTALL)
_NAMES_FIELD = re.compile(r"(?:missing required|contains unknown) field `(?P<name>[^`]*)`")


class BodyTimeoutError(TrioletError):
    """The body did not arrive in time."""

    status = 408
    error_type = "invalid_request_error"


async def read_body(request: Request, *, max_bytes: int, timeout: float = BODY_TIMEOUT_SECONDS) -> bytes:
    """The whole body. Raises :class:`RequestTooLargeError` above ``max_bytes``, whatever was announced."""
    if _has_come(request):
        return await _collect(request, max_bytes)
    with anyio.move_on_after(timeout):
        return await _collect(request, max_bytes)
    raise BodyTimeoutError(f"The request body did not arrive within {timeout:g} s.")


async def discard_body(request: Request, *, timeout: float = DISCARD_SECONDS) -> bool:
    """Read and drop what is left of a body; False if that is too much or takes too long.

    An answer that is out before the body is in ends the connection under the client, who may then see neither
    this answer nor the next.
    """
    if _has_come(request):
        return True
    num_bytes = 0
    with anyio.move_on_after(timeout), suppress(RequestEntityTooLarge):
        async for chunk in request.body:
            num_bytes += len(chunk)
            if num_bytes > DISCARD_BYTES:
                return False
        return True
    return False


async def _collect(request: Request, max_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in request.body:
        body += chunk
        if len(body) > max_bytes:
            raise RequestTooLargeError(
                f"The request body is larger than the {max_bytes} bytes accepted here."
            )
    return bytes(body)


def _has_come(request: Request) -> bool:
    """Whether there is nothing to wait for, as for most bodies: then the clock need not be asked."""
    return bool(cast("Scope", request.scope)[SCOPE_KEY].has_whole_body)


def decode_json(data: bytes, kind: type[T]) -> T:
    """Decode strictly. Raises :class:`InvalidRequestError` whose ``param`` is the path of the wrong field."""
    try:
        decoded = msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise invalid_field(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"The body is not valid JSON: {error}") from None
    except RecursionError:
        raise InvalidRequestError("The body is not valid JSON: it is nested too deeply") from None
    if _depth(data) > MAX_DEPTH:
        raise InvalidRequestError(f"The body is nested too deeply: more than {MAX_DEPTH} lists and objects")
    return decoded


def _depth(data: bytes) -> int:
    """How deeply valid JSON is nested, or a number that is no less and not above :data:`MAX_DEPTH`."""
    num_opened = data.count(b"[") + data.count(b"{")
    if num_opened <= MAX_DEPTH:
        return num_opened
    steps = (_STEPS[byte] for byte in _STRING.sub(b"", data) if byte in _STEPS)
    return max(accumulate(steps), default=0)


def invalid_field(text: str, inside: str = "") -> InvalidRequestError:
    """What the decoder says is wrong, as an error that names the field, which is ``inside`` another."""
    match = _AT_PATH.match(text)
    problem, path = (match["problem"], match["path"]) if match else (text, "")
    named = _NAMES_FIELD.search(problem)
    if named:
        path += f".{named['name']}"
    param = (inside + path).removeprefix(".") or None
    if param is None:
        return InvalidRequestError(f"The body must be a JSON object: {problem}")
    return InvalidRequestError(f"{param}: {problem}", param=param)
