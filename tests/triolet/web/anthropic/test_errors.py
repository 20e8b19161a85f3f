"""The error object of the Messages API."""

from __future__ import annotations

import pytest

from triolet.errors import (
    AuthenticationError,
    EngineDeadError,
    EngineGenerateError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    RequestTooLargeError,
    TrioletError,
)
from triolet.web.anthropic.errors import message_error_body


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidRequestError("x"), "invalid_request_error"),
        (AuthenticationError("x"), "authentication_error"),
        (ModelNotFoundError("x"), "not_found_error"),
        (RequestTooLargeError("x"), "request_too_large"),
        (OverloadedError("x"), "rate_limit_error"),
        (OverloadedError("x", is_serving=False), "overloaded_error"),
        (EngineDeadError("x"), "overloaded_error"),
        (EngineGenerateError("x"), "api_error"),
    ],
)
def test_the_type_follows_from_the_status(error: TrioletError, kind: str) -> None:
    assert message_error_body(error) == {"type": "error", "error": {"type": kind, "message": "x"}}
    assert message_error_body(error, "req-1")["request_id"] == "req-1"
