"""API keys: their names, limits and digests, and the texts and files that they are written in.

Pure; knows neither requests nor when a file has changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from triolet.errors import UsageError

__all__ = ["ApiKey", "digest_of", "parse_key_file", "parse_keys"]

DEFAULT_NAME = "default"
ADMIN_NAME = "admin"
LONGEST_NAME = 64

Limit = Annotated[int, Meta(ge=1)]


class ApiKey(Struct, frozen=True, kw_only=True):
    """A key, known by its SHA-256. A limit of None is none."""

    name: str
    digest: bytes
    is_admin: bool = False
    max_concurrent_requests: int | None = None
    max_requests_per_minute: int | None = None


class _Entry(Struct, kw_only=True, forbid_unknown_fields=True):
    """A key as a file has it."""

    name: Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME)]
    key: Annotated[str, Meta(min_length=1)]
    admin: bool = False
    max_concurrent_requests: Limit | None = None
    max_requests_per_minute: Limit | None = None

    def as_key(self) -> ApiKey:
        return ApiKey(
            name=self.name,
            digest=digest_of(self.key),
            is_admin=self.admin,
            max_concurrent_requests=self.max_concurrent_requests,
            max_requests_per_minute=self.max_requests_per_minute,
        )


def digest_of(key: str) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def parse_keys(text: str | None, *, option: str, is_admin: bool = False) -> list[ApiKey]:
    """The keys of an option: one, or several with spaces between, each ``KEY`` or ``NAME:KEY``.

    Raises :class:`UsageError` naming ``option`` where there is none, or two of one name.
    """
    if text is None:
        return []
    if not text.strip():
        raise _wrong(option, "holds no key", option)
    entries = []
    for word in text.split():
        name, colon, key = word.partition(":")
        if not colon:
            name, key = ADMIN_NAME if is_admin else DEFAULT_NAME, word
        entries.append(_checked({"name": name, "key": key, "admin": is_admin}, option, option))
    return _with_unique_names(entries, option, option)


def parse_key_file(data: bytes, path: str) -> list[ApiKey]:
    """The keys in a file: a JSON list of objects, or lines ``NAME KEY [admin] [LIMIT=NUMBER …]``.

    Raises :class:`UsageError` naming the line or the field, and never the key.
    """
    try:
        text = data.decode()
        found = msgspec.json.decode(text) if text.lstrip().startswith("[") else list(_of_lines(text, path))
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        raise _wrong(path, f"is neither JSON nor text: {error}", "api_key_file") from None
    return _with_unique_names(
        [_checked(entry, path, "api_key_file") for entry in found], path, "api_key_file"
    )


def _of_lines(text: str, path: str) -> Iterator[dict[str, object]]:
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) < 2:
            raise _wrong(path, f"line {number}: must be a name and a key", "api_key_file")
        entry: dict[str, object] = {"name": words[0], "key": words[1]}
        for word in words[2:]:
            name, _, value = word.partition("=")
            entry[name] = True if word == "admin" else int(value) if value.isdecimal() else value
        yield entry


def _checked(entry: object, where: str, option: str) -> _Entry:
    try:
        return msgspec.convert(entry, _Entry)
    except msgspec.ValidationError as error:
        name = entry.get("name") if isinstance(entry, dict) else None
        of_key = f" of key {name!r:.70}" if name else ""
        raise _wrong(where, f"{str(error).replace('`$.', '`')}{of_key}", option) from None


def _with_unique_names(entries: Sequence[_Entry], where: str, option: str) -> list[ApiKey]:
    names = [entry.name for entry in entries]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise _wrong(where, f"{twice[0]!r} names two keys; give each its own name", option)
    return [entry.as_key() for entry in entries]


def _wrong(where: str, problem: str, option: str) -> UsageError:
    flag = "--" + option.replace("_", "-")
    shown = flag if where == option else f"{flag} {where}"
    return UsageError(f"{shown}: {problem}", param=option)
