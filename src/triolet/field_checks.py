"""Checks of the fields of what a caller sends; each raises :class:`InvalidRequestError` naming the field.

This module knows none of the types whose fields it checks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from triolet.errors import InvalidRequestError

__all__ = ["as_tuple", "check_bool", "check_float", "check_int", "check_length"]


def check_float(name: str, value: object, low: float, high: float, *, is_low_open: bool = False) -> None:
    """A number in [low, high], or (low, high] if ``is_low_open``."""
    # The bounds keep out NaN, which compares with nothing, and the infinities.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and low <= value <= high and not (is_low_open and value == low):  # type: ignore[operator]
        return
    bracket = "(" if is_low_open else "["
    raise InvalidRequestError(f"{name}: must be in {bracket}{low:g}, {high:g}], got {value!r}", param=name)


def check_int(name: str, value: object, low: int, high: int) -> None:
    """An integer in [low, high]; a boolean is none."""
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return
    raise InvalidRequestError(f"{name}: must be an integer in [{low}, {high}], got {value!r}", param=name)


def check_bool(name: str, value: object) -> None:
    """True or False, and nothing that merely acts like it."""
    if not isinstance(value, bool):
        raise InvalidRequestError(f"{name}: must be true or false, got {value!r}", param=name)


def check_length(name: str, values: tuple[Any, ...], limit: int) -> None:
    """At most ``limit`` entries."""
    if len(values) > limit:
        raise InvalidRequestError(f"{name}: at most {limit} entries, got {len(values)}", param=name)


def as_tuple(name: str, values: object) -> tuple[Any, ...]:
    """The entries of a list, whatever sequence it is."""
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        raise InvalidRequestError(f"{name}: must be a list, got {values!r}", param=name)
    return tuple(values)
