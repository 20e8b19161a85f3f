"""Every exception triolet raises on purpose, with the HTTP status and the OpenAI error type it becomes.

::

    TrioletError
    ├── UsageError                 an option or a combination of options is wrong (exit code 2)
    ├── ModelLoadError             the model cannot be loaded
    │   ├── ModelFetchError        it cannot be had: no network, no pip, wrong checksum
    │   ├── ModelFileError         a file is truncated, malformed or hostile
    │   ├── UnknownArchitectureError
    │   └── WeightsError           a tensor is missing, unexpected, wrongly shaped or not finite
    ├── RequestError               the caller can do something about it
    │   ├── InvalidRequestError    400; ``param`` names the field
    │   │   └── PromptTooLongError
    │   ├── AuthenticationError    401
    │   ├── PermissionDeniedError  403: the API key does not open this route
    │   ├── ModelNotFoundError     404
    │   ├── ConflictError          409: not while something else is as it is
    │   ├── RequestTooLargeError   413
    │   ├── UnreadOutputError      408: a stream was left unread for too long
    │   ├── NotServedError         501: no model here can do it
    │   └── OverloadedError        429 (queue full) or 503 (not serving), with ``retry_after``
    ├── JoinError                  a process of the cluster cannot be reached, or refused to have us
    └── EngineError                the engine failed
        ├── EngineGenerateError    500: this request only
        └── EngineDeadError        503: nothing can be answered any more

This module knows nothing of the rest of the package.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "AuthenticationError",
    "ConflictError",
    "EngineDeadError",
    "EngineError",
    "EngineGenerateError",
    "InvalidRequestError",
    "JoinError",
    "ModelFetchError",
    "ModelFileError",
    "ModelLoadError",
    "ModelNotFoundError",
    "NotServedError",
    "OverloadedError",
    "PermissionDeniedError",
    "PromptTooLongError",
    "RequestError",
    "RequestTooLargeError",
    "TrioletError",
    "UnknownArchitectureError",
    "UnreadOutputError",
    "UsageError",
    "WeightsError",
]


class TrioletError(Exception):
    """Base of all errors raised on purpose. The message says what is wrong and what to do about it."""

    status: ClassVar[int] = 500
    error_type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class UsageError(TrioletError):
    """An option, or a combination of options, is wrong. ``param`` is the field of ``EngineArgs``."""

    status = 400
    error_type = "invalid_request_error"


class ModelLoadError(TrioletError):
    """The model cannot be loaded."""


class ModelFetchError(ModelLoadError):
    """The model cannot be had; the message gives the manual way out."""


class ModelFileError(ModelLoadError):
    """A model file is truncated, malformed or hostile."""


class UnknownArchitectureError(ModelLoadError):
    """The architecture is not supported; the message lists the known ones."""


class WeightsError(ModelLoadError):
    """A tensor is missing, unexpected, wrongly shaped or not finite; the message names it."""


class RequestError(TrioletError):
    """A request that the caller can mend or retry."""

    status = 400
    error_type = "invalid_request_error"


class InvalidRequestError(RequestError):
    """A field has a value that cannot be served; ``param`` names the field."""


class PromptTooLongError(InvalidRequestError):
    """Prompt and requested tokens do not fit in the model's context or the KV cache."""

    code = "context_length_exceeded"


class AuthenticationError(RequestError):
    """The API key is missing or wrong."""

    status = 401
    error_type = "authentication_error"
    code = "invalid_api_key"


class PermissionDeniedError(RequestError):
    """The API key is right, but does not open this route; or no key does."""

    status = 403
    error_type = "permission_error"
    code = "admin_key_required"


class ModelNotFoundError(RequestError):
    """The request names a model that is not served here."""

    status = 404
    error_type = "not_found_error"
    code = "model_not_found"


class ConflictError(RequestError):
    """The request cannot be served as things stand now; the message says what stands in its way."""

    status = 409
    error_type = "conflict_error"
    code = "conflict"


class NotServedError(RequestError):
    """The route exists elsewhere, but nothing here can serve it; the message gives the way out."""

    status = 501
    error_type = "not_implemented_error"
    code = "not_implemented"


class RequestTooLargeError(RequestError):
    """The body is larger than the server accepts."""

    status = 413


class UnreadOutputError(RequestError):
    """Too much of a stream was left unread; its request has been ended."""

    status = 408
    code = "unread_output"


class OverloadedError(RequestError):
    """The server cannot take the request now: 429 when its queue is full, 503 when it is not serving.

    ``retry_after`` is in whole seconds, at least 1.
    """

    error_type = "overloaded_error"

    def __init__(self, message: str, *, retry_after: int = 1, is_serving: bool = True) -> None:
        super().__init__(message)
        self.retry_after = max(1, retry_after)
        self.status = 429 if is_serving else 503  # type: ignore[misc]


class JoinError(TrioletError):
    """A process of the cluster cannot be reached, or refuses us; the message says what was missing."""

    status = 503


class EngineError(TrioletError):
    """The engine failed."""


class EngineGenerateError(EngineError):
    """One request failed inside the engine; the others go on."""


class EngineDeadError(EngineError):
    """The engine has stopped for good; ``__cause__`` or the message carries the reason."""

    status = 503
    error_type = "engine_dead_error"
