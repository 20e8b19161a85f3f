"""What a chat template may ask of Python's strings, lists and numbers, checked before it is done.

Each function that can make a long result out of short arguments has a rule here; anything else makes a
result about as long as what goes in. This module knows neither Jinja nor chats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["MAX_CHARACTERS", "TemplateLimitError", "check_function", "check_operator", "check_result"]

MAX_CHARACTERS = 16 * 2**20
"""Longest text, or list, that a template may make."""
MAX_WIDTH = 1_000
"""Largest width that text may be padded or indented to."""
MAX_BITS = 1 << 16
"""Longest whole number."""

_WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(?:\d{4}|\*)|\{[^{}]*(?:\d{4}|\{)")


class TemplateLimitError(Exception):
    """A template does more than it may; the message reads on from "the chat template"."""


def check_function(name: str, value: Any, arguments: Sequence[Any]) -> None:
    """Check a method or filter called ``name`` on ``value``; raises :class:`TemplateLimitError`."""
    if (rule := _RULES.get(name)) is not None:
        rule(value, arguments)


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Check ``left operator right``; raises :class:`TemplateLimitError`."""
    if operator == "*":
        for sequence, count in ((left, right), (right, left)):
            if isinstance(sequence, str | list | tuple) and isinstance(count, int):
                _check_length(len(sequence) * count)
    elif operator == "**":
        _check_power(left, right)
    elif operator == "%":
        _format(left, ())


def check_result(value: Any) -> Any:
    """``value`` itself; raises :class:`TemplateLimitError` if it is too long."""
    if isinstance(value, str | list | tuple | dict):
        _check_length(len(value))
    elif isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise TemplateLimitError(f"makes a number of more than {MAX_BITS:,} bits")
    return value


def _check_length(length: int) -> None:
    if length > MAX_CHARACTERS:
        raise TemplateLimitError(f"makes a text or list of more than {MAX_CHARACTERS:,} items")


def _check_power(base: Any, exponent: Any) -> None:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > MAX_BITS:
        raise TemplateLimitError(f"makes a number of more than {MAX_BITS:,} bits")


def _pad(value: Any, arguments: Sequence[Any]) -> None:
    if any(isinstance(argument, int) and argument > MAX_WIDTH for argument in arguments):
        raise TemplateLimitError(f"pads to more than {MAX_WIDTH:,}")


def _indent(value: Any, arguments: Sequence[Any]) -> None:
    _pad(value, arguments)
    widths = [len(a) if isinstance(a, str) else a for a in arguments if isinstance(a, str | int)]
    _check_length(str(value).count("\n") * max(widths, default=4))


def _format(value: Any, arguments: Sequence[Any]) -> None:
    if isinstance(value, str) and _WIDE_FORMAT.search(value.replace("{{", "").replace("}}", "")):
        raise TemplateLimitError(f"formats to a width of more than {MAX_WIDTH - 1:,}, or one given apart")


def _replace(value: Any, arguments: Sequence[Any]) -> None:
    if len(arguments) >= 2:
        old, new = str(arguments[0]), str(arguments[1])
        _check_length(str(value).count(old) * len(new))


def _join(value: Any, arguments: Sequence[Any]) -> None:
    """``separator.join(items)`` as well as ``items | join(separator)``."""
    separator, items = (
        (value, arguments[0]) if arguments and not isinstance(arguments[0], str) else ("", value)
    )
    if arguments and isinstance(arguments[0], str):
        separator = arguments[0]
    if isinstance(items, str | list | tuple | dict):
        _check_length(len(items) * len(str(separator)))
        _check_length(sum(len(item) for item in items if isinstance(item, str)))


_RULES: Mapping[str, Callable[[Any, Sequence[Any]], None]] = {
    **dict.fromkeys(("batch", "center", "expandtabs", "ljust", "rjust", "slice", "tojson"), _pad),
    **dict.fromkeys(("wordwrap", "zfill"), _pad),
    **dict.fromkeys(("format", "format_map"), _format),
    "indent": _indent,
    "join": _join,
    "replace": _replace,
}
