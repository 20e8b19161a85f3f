"""A tiny server that speaks the OpenAI API with canned text, on threads of its own, for tests of clients."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["CannedServer", "canned_server", "serve_forever"]


@dataclass
class CannedServer:
    """What the server says, and what it was asked."""

    url: str = ""
    words: tuple[str, ...] = ("Hello", " there", "!")
    error: tuple[int, dict[str, Any]] | None = None
    mid_stream_error: str | None = None
    max_words: int | None = None
    requests: list[tuple[str, dict[str, Any], dict[str, str]]] = field(default_factory=list)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = True
    request_queue_size = 64
    canned: CannedServer


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        canned = self.server.canned
        if self.path == "/v1/models":
            self._answer(200, {"object": "list", "data": [{"id": "canned", "object": "model"}]})
        elif self.path in ("/ready", "/health"):
            self._answer(200, {"status": "ready"})
        else:
            self._answer(404, {"error": {"message": f"no {self.path} in {canned.url}"}})

    def do_POST(self) -> None:
        canned = self.server.canned
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        canned.requests.append((self.path, body, dict(self.headers)))
        if canned.error is not None:
            self._answer(*canned.error)
        elif body.get("stream"):
            self._stream(body)
        else:
            self._answer(200, {"choices": [{"text": "".join(self._words(body)), "index": 0}]})

    def _words(self, body: dict[str, Any]) -> list[str]:
        canned = self.server.canned
        count = min(body.get("max_tokens") or len(canned.words), canned.max_words or 10**9)
        return [canned.words[i % len(canned.words)] for i in range(count)]

    def _stream(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        words = self._words(body)
        self._chunk(b": a comment\n\n")
        for word in words:
            is_chat = self.path.endswith("/chat/completions")
            delta = {"delta": {"content": word}} if is_chat else {"text": word}
            self._event({"choices": [{"index": 0, "finish_reason": None, **delta}]})
        if self.server.canned.mid_stream_error is not None:
            self._event({"error": {"message": self.server.canned.mid_stream_error}})
        if (body.get("stream_options") or {}).get("include_usage"):
            usage = {"prompt_tokens": 100, "completion_tokens": len(words), "total_tokens": 100 + len(words)}
            self._event({"choices": [], "usage": usage})
        self._chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, value: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def canned_server(**settings: Any) -> Iterator[CannedServer]:
    """A running server; its ``url`` ends in ``/v1``. Keyword arguments are the fields of CannedServer."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.canned = CannedServer(url=f"http://127.0.0.1:{server.server_port}/v1", **settings)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.canned
        finally:
            server.shutdown()
            thread.join()


def serve_forever(port: int) -> None:
    """Serve canned text until SIGTERM, for tests that need a process."""
    with _Server(("127.0.0.1", port), _Handler) as server:
        server.canned = CannedServer(url=f"http://127.0.0.1:{port}/v1")
        server.serve_forever(poll_interval=0.01)
