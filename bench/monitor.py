"""What a server tells of itself while it is measured: its load, and its metrics as numbers.

One connection that stays open; knows nothing of what is asked of the server otherwise.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any, TypeVar
from urllib.parse import urlsplit

__all__ = ["Metrics", "Monitor"]

_SAMPLE = re.compile(r"^(\w+)(\{[^}]*\})? (\S+)$", re.MULTILINE)
TIMEOUT = 60.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Metrics:
    """The samples of one scrape, as name, labels and value."""

    samples: tuple[tuple[str, str, float], ...]

    @classmethod
    def parse(cls, text: str) -> Metrics:
        return cls(tuple((name, labels, float(value)) for name, labels, value in _SAMPLE.findall(text)))

    def total(self, name: str, label: str = "") -> float:
        """The sum over all samples of this name whose labels hold ``label``."""
        return sum(value for known, labels, value in self.samples if known == name and label in labels)


class Monitor:
    """Asks the server at ``url``, without a path."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        assert address.hostname is not None, "it is complete"
        self._connection = HTTPConnection(address.hostname, address.port, timeout=TIMEOUT)

    def close(self) -> None:
        self._connection.close()

    def metrics(self) -> Metrics:
        return Metrics.parse(self._get("/metrics").decode())

    def load(self) -> dict[str, Any]:
        """As ``/load`` has it."""
        return json.loads(self._get("/load"))  # type: ignore[no-any-return]

    def until(self, is_so: Callable[[dict[str, Any]], bool]) -> float:
        """When the load was seen to be like this. Raises RuntimeError after a minute in which it was not."""
        return _until(self.load, is_so)

    def await_metrics(self, are_so: Callable[[Metrics], bool]) -> float:
        """When the metrics were seen to be like this. Raises RuntimeError as above."""
        return _until(self.metrics, are_so)

    def _get(self, path: str) -> bytes:
        self._connection.request("GET", path)
        response = self._connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise RuntimeError(f"{path}: status {response.status}: {body[:300]!r}")
        return body


def _until(look: Callable[[], T], is_so: Callable[[T], bool]) -> float:
    deadline = time.perf_counter() + TIMEOUT
    while True:
        seen = look()
        now = time.perf_counter()
        if is_so(seen):
            return now
        if now > deadline:
            raise RuntimeError(f"what was waited for has not come within {TIMEOUT:g} s: {seen}")
