"""A client of a running server: chat and completions over HTTP with server-sent events.

Works with any server that speaks the OpenAI API; needs the standard library alone. Knows
nothing of the command line.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import SplitResult, urlsplit

from triolet.errors import TrioletError, UsageError

__all__ = ["RemoteModel", "ServerError", "event_data"]

_CONNECT_TIMEOUT = 10.0
_READ_TIMEOUT = 300.0
_MAX_ERROR_BYTES = 64 * 1024


class ServerError(TrioletError):
    """The server cannot be reached, or answered with an error; the message gives its own words."""


class RemoteModel:
    """A model behind ``url``, the address up to and including ``/v1``.

    ``model`` None takes the first that the server lists. Each call is one connection, closed when its
    iterator is, so that leaving early cancels the request on the server.
    """

    def __init__(self, url: str, *, model: str | None = None, api_key: str | None = None) -> None:
        self._address = _address(url)
        self._model = model
        self._headers = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    @property
    def model(self) -> str:
        """The name sent with each request. Raises :class:`ServerError`."""
        if self._model is None:
            with self._exchange("GET", "/models", None) as response:
                names = [str(model["id"]) for model in json.loads(response.read())["data"]]
            if not names:
                raise ServerError(f"{self._address.geturl()} serves no model")
            self._model = names[0]
        return self._model

    def complete(self, prompt: str, options: Mapping[str, Any]) -> Generator[str, None, None]:
        """The continuation of ``prompt``, piece by piece. Raises :class:`ServerError`."""
        for event in self._stream("/completions", {"prompt": prompt, **options}):
            yield event["text"] or ""

    def chat(
        self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]
    ) -> Generator[str, None, None]:
        """The answer to a conversation, piece by piece. Raises :class:`ServerError`."""
        for event in self._stream("/chat/completions", {"messages": list(messages), **options}):
            yield event["delta"].get("content") or ""

    def _stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        body = {"model": self.model, "stream": True, **body}
        with self._exchange("POST", path, body) as response:
            kind = response.headers.get_content_type()
            if kind != "text/event-stream":
                raise ValueError(f"{kind} instead of a stream")
            for data in event_data(response):
                chunk = json.loads(data)
                if "error" in chunk:
                    raise ServerError(_error_message(chunk) or data)
                yield from chunk["choices"][:1]

    @contextmanager
    def _exchange(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> Iterator[http.client.HTTPResponse]:
        is_tls = self._address.scheme == "https"
        kind = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
        connection = kind(self._address.hostname or "", self._address.port, timeout=_CONNECT_TIMEOUT)
        payload = None if body is None else json.dumps(body).encode()
        try:
            connection.connect()
            connection.sock.settimeout(_READ_TIMEOUT)
            connection.request(method, self._address.path.rstrip("/") + path, payload, self._headers)
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise self._refusal(response)
            yield response
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ServerError(
                f"what {self._address.geturl()} answered is not of the OpenAI API: {error!r}; "
                "is the address right, up to and including /v1?"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(
                f"no answer from {self._address.geturl()}: {error or type(error).__name__}; "
                "is a server running there? Start one with: triolet serve"
            ) from error
        finally:
            connection.close()

    def _refusal(self, response: http.client.HTTPResponse) -> ServerError:
        raw = response.read(_MAX_ERROR_BYTES)
        try:
            message = _error_message(json.loads(raw))
        except ValueError:
            message = None
        return ServerError(
            f"{self._address.geturl()} answered {response.status}: {message or response.reason}"
        )


def _address(url: str) -> SplitResult:
    """The parts of an address. Raises :class:`UsageError`."""
    try:
        address = urlsplit(url if "//" in url else f"http://{url}")
        is_good = address.scheme in ("http", "https") and address.hostname and address.port != 0
    except ValueError:  # no number, or none of a port
        is_good = False
    if not is_good:
        raise UsageError(f"--url must look like http://127.0.0.1:8000/v1, got {url!r}", param="url")
    return address


def event_data(lines: Iterable[bytes]) -> Iterator[str]:
    """The data of each server-sent event up to ``[DONE]``; comments are skipped.

    Source: WHATWG HTML, section "Server-sent events"; events here have one data line each.
    """
    for line in lines:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip().decode()
        if data == "[DONE]":
            return
        yield data


def _error_message(body: object) -> str | None:
    """The message of an error in the OpenAI shape, if it is one."""
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else None
