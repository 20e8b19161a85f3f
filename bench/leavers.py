"""Clients that go as far as a phase of their request, and leave it: a socket and the bytes to wait for.

Knows the API of a server from outside only.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from bench.monitor import Monitor
from bench.prompts import make_prompt

__all__ = ["PHASES", "Leaver", "Situation"]

TIMEOUT = 60.0
LONG = 4000
"""Tokens that nobody waits for."""
PROMPT_WORDS = 1500
SMALL_BUFFER = 4096
NUM_UNREAD_TOKENS = 60
CALL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "store",
        "parameters": {
            "type": "object",
            "properties": {"numbers": {"type": "array", "items": {"type": "integer"}, "minItems": 2000}},
            "required": ["numbers"],
        },
    },
}


class Leaver:
    """A client with one request. ``buffer``: how many bytes its system takes before it is read."""

    def __init__(self, url: str, path: str, body: Mapping[str, Any], *, buffer: int | None = None) -> None:
        address = urlsplit(url)
        data = json.dumps(body).encode()
        self._socket = socket.socket()
        if buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self._socket.settimeout(TIMEOUT)
        self._socket.connect((address.hostname, address.port))
        head = f"POST {address.path}{path} HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(data)}\r\n\r\n"
        self._socket.sendall(head.encode() + data)

    def read(self, marker: bytes, times: int = 1) -> None:
        """Read until this has come so many times. Raises RuntimeError if the answer ends before."""
        received = b""
        while received.count(marker) < times:
            data = self._socket.recv(65536)
            received += data
            if not data or b"[DONE]" in received:
                raise RuntimeError(f"the answer has ended without {marker!r}: {received[-500:]!r}")

    def leave(self, *, is_abrupt: bool) -> float:
        """Close the connection, or reset it; when that was."""
        if is_abrupt:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        now = time.perf_counter()
        self._socket.close()
        return now


@dataclass(frozen=True, slots=True)
class Situation:
    """What a client comes into. ``index`` is one of its own, ``step_seconds`` about what a step takes."""

    url: str
    model: str
    monitor: Monitor
    dice: random.Random
    index: int
    step_seconds: float

    def completion(self, num_words: int = 20, **more: Any) -> Leaver:
        body = {"prompt": make_prompt(self.index, num_words), "temperature": 0, **more}
        return self.send("/completions", body)

    def send(self, path: str, body: Mapping[str, Any], *, buffer: int | None = None) -> Leaver:
        body = {"model": self.model, "max_tokens": LONG, "ignore_eos": True, **body}
        return Leaver(self.url, path, body, buffer=buffer)


def _queue(now: Situation) -> Leaver:
    """The slot is another's, who stays."""
    client = now.completion()
    now.monitor.until(lambda load: load["num_requests_waiting"] == 1)
    return client


def _prefill(now: Situation) -> Leaver:
    """A part of the prompt is computed."""
    client = now.completion(PROMPT_WORDS, stream=True, return_progress=True)
    client.read(b"prompt_progress")
    return client


def _decode(now: Situation) -> Leaver:
    """Tokens are made, none are sent."""
    client = now.completion()
    now.monitor.until(lambda load: load["num_requests_running"] == 1)
    time.sleep(now.dice.uniform(2, 20) * now.step_seconds)
    return client


def _between_tokens(now: Situation) -> Leaver:
    """Some tokens have come, and the next one is being made."""
    client = now.completion(stream=True)
    client.read(b"data:", now.dice.randint(1, 8))
    time.sleep(now.dice.random() * now.step_seconds)
    return client


def _write(now: Situation) -> Leaver:
    """Much has been sent that the client does not read."""
    before = now.monitor.metrics().total("triolet_generation_tokens_total")
    messages = [{"role": "user", "content": make_prompt(now.index, 20)}]
    body = {"messages": messages, "stream": True, "logprobs": True, "top_logprobs": 20}
    client = now.send("/chat/completions", body, buffer=SMALL_BUFFER)
    client.read(b"data:")
    while now.monitor.metrics().total("triolet_generation_tokens_total") < before + NUM_UNREAD_TOKENS:
        time.sleep(now.step_seconds)
    return client


def _call(now: Situation) -> Leaver:
    """The arguments of a call are being written."""
    messages = [{"role": "user", "content": make_prompt(now.index, 20)}]
    body = {"messages": messages, "stream": True, "tools": [CALL], "tool_choice": "required"}
    client = now.send("/chat/completions", body)
    client.read(b'"arguments"', 2 + now.dice.randrange(6))
    return client


PHASES: Mapping[str, Callable[[Situation], Leaver]] = {
    "queued": _queue,
    "prefill": _prefill,
    "decoding": _decode,
    "between tokens": _between_tokens,
    "answer being written": _write,
    "tool call": _call,
}
"""What each client does until it leaves."""
