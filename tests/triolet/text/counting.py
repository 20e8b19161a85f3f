"""Counts the characters that a parser looks at or copies: the same on every machine, unlike its time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, SupportsIndex

import pytest

from triolet.text import incremental


class Counter:
    num_characters = 0

    def text(self, text: str) -> CountedText:
        counted = CountedText(text)
        counted.counter = self
        return counted

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Count what the parts of parsers search as well."""
        alternatives = incremental._alternatives
        monkeypatch.setattr(
            incremental, "_alternatives", lambda markers: CountedPattern(alternatives(markers), self)
        )
        for name in ("_SPACE", "_STRING", "_SCALAR"):
            monkeypatch.setattr(incremental, name, CountedPattern(getattr(incremental, name), self))


class CountedText(str):
    """Counts itself whenever it is copied or gone through, and so does what is made of it."""

    counter: Counter

    def _counted(self, text: str) -> CountedText:
        self.counter.num_characters += len(text)
        return self.counter.text(text)

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        return self._counted(str.__getitem__(self, key))

    def __add__(self, other: str) -> str:
        return self._counted(str(self) + str(other))

    def __radd__(self, other: str) -> str:
        return self._counted(str(other) + str(self))

    def __iter__(self) -> Iterator[str]:
        self.counter.num_characters += len(self)
        return iter(str(self))

    def rstrip(self, characters: str | None = None) -> str:
        return self._counted(str(self).rstrip(characters))


class CountedPattern:
    """A pattern that counts what it goes over."""

    def __init__(self, pattern: re.Pattern[str], counter: Counter) -> None:
        self._pattern = pattern
        self._counter = counter

    def __getattr__(self, name: str) -> Any:
        def look(text: str, at: int, end: int = 10**9) -> re.Match[str] | None:
            found: re.Match[str] | None = getattr(self._pattern, name)(str(text), at, end)
            last = found.end() if found is not None else min(len(text), end)
            self._counter.num_characters += last - at
            return found

        return look
