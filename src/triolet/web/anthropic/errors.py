"""The error object of the Messages API. Pure; which routes have it is not known here."""

from __future__ import annotations

from typing import Any

from triolet.errors import TrioletError

__all__ = ["message_error_body"]

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def message_error_body(error: TrioletError, request_id: str | None = None) -> dict[str, Any]:
    """``{"type": "error", "error": {"type", "message"}, "request_id"}``; the type follows from the status."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    body: dict[str, Any] = {"type": "error", "error": {"type": kind, "message": error.message}}
    return body if request_id is None else body | {"request_id": request_id}
