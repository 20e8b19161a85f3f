"""API keys: their names, limits and digests, and the texts and files that they are written in.

Pure; knows neither requests nor when a file has changed. No message holds a key, or what may be one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from triolet.errors import UsageError
from triolet.option_fields import flag_of

__all__ = ["ApiKey", "check_distinct", "digest_of", "parse_key_file", "parse_keys"]

DEFAULT_NAME = "default"
ADMIN_NAME = "admin"
LONGEST_NAME = 64
LIMITS = ("max_concurrent_requests", "max_requests_per_minute")
FIELDS = ("name", "key", "admin", *LIMITS)
CAN_BE_SENT = re.compile("[!-~]+")

Limit = Annotated[int, Meta(ge=1)]


class ApiKey(Struct, frozen=True, kw_only=True):
    """A key, known by its SHA-256. A limit of None is none. ``source``: where it is written, for messages."""

    name: str
    digest: bytes
    source: str
    is_admin: bool = False
    max_concurrent_requests: int | None = None
    max_requests_per_minute: int | None = None


class _Entry(Struct, kw_only=True):
    """A key as a file has it."""

    name: Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME)]
    key: Annotated[str, Meta(min_length=1)]
    admin: bool = False
    max_concurrent_requests: Limit | None = None
    max_requests_per_minute: Limit | None = None

    def as_key(self, source: str) -> ApiKey:
        return ApiKey(
            name=self.name,
            digest=digest_of(self.key),
            source=source,
            is_admin=self.admin,
            max_concurrent_requests=self.max_concurrent_requests,
            max_requests_per_minute=self.max_requests_per_minute,
        )


def digest_of(key: str) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def parse_keys(text: str | None, *, option: str, is_admin: bool = False) -> list[ApiKey]:
    """The keys of an option: one, or several with spaces between, each ``KEY`` or ``NAME:KEY``.

    Raises :class:`UsageError` naming ``option`` where there is none, where one cannot be sent, and where two
    have the same name or are the same.
    """
    if text is None:
        return []
    source = f"{flag_of(option)} (TRIOLET_{option.upper()})"
    if not text.strip():
        raise UsageError(f"{source}: holds no key", param=option)
    keys = []
    for number, word in enumerate(text.split(), start=1):
        name, colon, key = word.partition(":")
        if not colon:
            name, key = ADMIN_NAME if is_admin else DEFAULT_NAME, word
        entry = {"name": name, "key": key, "admin": is_admin}
        keys.append(_as_key(entry, source, f"key {number}", option))
    check_distinct(keys, option)
    return keys


def parse_key_file(data: bytes, path: str) -> list[ApiKey]:
    """The keys in a file: a JSON list of objects, or lines ``NAME KEY [admin] [LIMIT=NUMBER …]``.

    Raises :class:`UsageError` naming the line or the entry, and never the key.
    """
    source, option = f"--api-key-file {path}", "api_key_file"
    try:
        text = data.decode("utf-8-sig")
        found = _of_json(text) if text.lstrip().startswith("[") else _of_lines(text, source, option)
        entries = list(found)
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{source}: is neither JSON nor text: {error}", param=option) from None
    keys = [_as_key(entry, source, place, option) for place, entry in entries]
    check_distinct(keys, option)
    return keys


def check_distinct(keys: Sequence[ApiKey], option: str) -> None:
    """Raises :class:`UsageError` where two keys have one name, or are the same, naming where they are."""
    names: dict[str, ApiKey] = {}
    digests: dict[bytes, ApiKey] = {}
    for key in keys:
        if key.name in names:
            raise UsageError(
                f"{_sources(names[key.name], key)}: {key.name!r} names two keys; give each its own name",
                param=option,
            )
        if key.digest in digests:
            other = digests[key.digest]
            raise UsageError(
                f"{_sources(other, key)}: {other.name!r} and {key.name!r} are the same key, which would be "
                "known by the first name and open what that one opens; make one of them another",
                param=option,
            )
        names[key.name] = digests[key.digest] = key


def _sources(first: ApiKey, second: ApiKey) -> str:
    return first.source if first.source == second.source else f"{first.source} and {second.source}"


def _of_json(text: str) -> Iterable[tuple[str, object]]:
    return ((f"entry {number}", entry) for number, entry in enumerate(msgspec.json.decode(text), start=1))


def _of_lines(text: str, source: str, option: str) -> Iterator[tuple[str, object]]:
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        place = f"line {number}"
        if len(words) < 2:
            raise UsageError(f"{source}: {place}: must be a name and a key", param=option)
        entry: dict[str, object] = {"name": words[0], "key": words[1]}
        for word in words[2:]:
            name, _, value = word.partition("=")
            if word != "admin" and name not in LIMITS:
                raise UsageError(
                    f"{source}: {place}: after name and key, in which there is no space, may come admin, "
                    f"{' and '.join(f'{limit}=NUMBER' for limit in LIMITS)}, and nothing else",
                    param=option,
                )
            entry[name] = True if word == "admin" else int(value) if value.isdecimal() else value
        yield place, entry


def _as_key(entry: object, source: str, place: str, option: str) -> ApiKey:
    if isinstance(entry, dict) and not entry.keys() <= set(FIELDS):
        # Whatever else is there is not named: it may be the key, where the two sides have been mixed up.
        raise UsageError(f"{source}: {place}: may have no fields but {', '.join(FIELDS)}", param=option)
    try:
        checked = msgspec.convert(entry, _Entry)
    except msgspec.ValidationError as error:
        raise UsageError(f"{source}: {place}: {str(error).replace('`$.', '`')}", param=option) from None
    if not CAN_BE_SENT.fullmatch(checked.key):
        raise UsageError(
            f"{source}: {place}: the key can never be sent in a header, where clients put printable ASCII "
            "characters alone; use no others, and no space",
            param=option,
        )
    return checked.as_key(source)
