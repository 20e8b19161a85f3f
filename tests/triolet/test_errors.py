from __future__ import annotations

import inspect

import pytest

from triolet import errors
from triolet.errors import (
    AuthenticationError,
    EngineDeadError,
    EngineGenerateError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    PromptTooLongError,
    RequestTooLargeError,
    TrioletError,
    UsageError,
)

ALL = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("error", ALL)
def test_every_error_is_in_the_tree_and_drawn_in_it(error: type[TrioletError]) -> None:
    assert issubclass(error, TrioletError)
    assert errors.__doc__ is not None
    assert error.__name__ in errors.__doc__


def test_nothing_is_raised_that_is_not_public() -> None:
    defined = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert defined == set(errors.__all__)


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (InvalidRequestError("x"), 400, "invalid_request_error", None),
        (PromptTooLongError("x"), 400, "invalid_request_error", "context_length_exceeded"),
        (AuthenticationError("x"), 401, "authentication_error", "invalid_api_key"),
        (ModelNotFoundError("x"), 404, "not_found_error", "model_not_found"),
        (RequestTooLargeError("x"), 413, "invalid_request_error", None),
        (OverloadedError("x"), 429, "overloaded_error", None),
        (OverloadedError("x", is_serving=False), 503, "overloaded_error", None),
        (EngineGenerateError("x"), 500, "server_error", None),
        (EngineDeadError("x"), 503, "engine_dead_error", None),
        (UsageError("x"), 400, "invalid_request_error", None),
    ],
)
def test_what_it_becomes_over_http(error: TrioletError, status: int, kind: str, code: str | None) -> None:
    assert (error.status, error.error_type, error.code) == (status, kind, code)


def test_the_message_is_kept_and_the_field_named() -> None:
    error = InvalidRequestError("top_p: must be in (0, 1]", param="top_p")
    assert (str(error), error.message, error.param) == ("top_p: must be in (0, 1]",) * 2 + ("top_p",)


@pytest.mark.parametrize(("given", "kept"), [(-3, 1), (0, 1), (1, 1), (30, 30)])
def test_retry_after_is_at_least_a_second(given: int, kept: int) -> None:
    assert OverloadedError("later", retry_after=given).retry_after == kept


def test_one_overload_does_not_change_the_status_of_another() -> None:
    OverloadedError("stopping", is_serving=False)
    assert OverloadedError("full").status == 429
