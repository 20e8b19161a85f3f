"""What a chat template may ask of Python's texts, lists and numbers.

No value may be written out longer than a limit, so a function that makes about what goes in needs no rule;
each one that makes a long result of short arguments has a rule here, checked before it is called. What is
made costs of a budget as much as :func:`measure` says. This module knows neither Jinja nor chats.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

__all__ = [
    "ITEM_CHARACTERS",
    "MAX_CHARACTERS",
    "MAX_TOTAL_CHARACTERS",
    "TemplateLimitError",
    "check_function",
    "check_length",
    "check_operator",
    "concatenate",
    "measure",
]

MAX_CHARACTERS = 4 * 2**20
"""Longest text that a template may make of anything, and longest prompt it may write."""
MAX_TOTAL_CHARACTERS = 32 * 2**20
"""All that one rendering may make."""
ITEM_CHARACTERS = 64
"""What an object, or a place in a list, costs: about the memory it takes. Numbers alone are free."""
MAX_WIDTH = 1_000
"""Largest width that text may be padded or indented to."""
MAX_BITS = 4_096
"""Longest whole number."""

_REFUSED_FORMAT = re.compile(r"%[^a-zA-Z%]*(?:\d{4}|\*)|\{[^{}]*(?:\d{4}|\{)|\{[^{}:!]*[.\[]")
_VIEWS: Any = (type({}.keys()), type({}.values()), type({}.items()))
_COLLECTIONS: Any = (list, tuple, set, frozenset, *_VIEWS)
_SIZED: Any = (dict, *_COLLECTIONS)


class TemplateLimitError(Exception):
    """A template does more than it may; the message reads on from "the chat template"."""


def measure(value: Any) -> int:
    """What ``value`` costs to make; raises :class:`TemplateLimitError` if it is too long."""
    if isinstance(value, str):
        check_length(len(value))
        return ITEM_CHARACTERS + len(value)
    if isinstance(value, _SIZED):
        _written_length(value)
        return ITEM_CHARACTERS * (1 + len(value))
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise TemplateLimitError(f"makes a number of more than {MAX_BITS:,} bits")
    return 0 if value is None or isinstance(value, int | float) else ITEM_CHARACTERS


def check_length(length: int) -> None:
    """Raise :class:`TemplateLimitError` if a text of ``length`` would be too long."""
    if length > MAX_CHARACTERS:
        raise TemplateLimitError(f"makes a text or list of more than {MAX_CHARACTERS:,} characters")


def concatenate(pieces: Iterable[object], separator: str = "") -> str:
    """``separator.join(pieces)``, given up as soon as it is too long."""
    text = io.StringIO(newline="")
    for position, piece in enumerate(pieces):
        text.write(separator if position else "")
        text.write(str(piece))
        check_length(text.tell())
    return text.getvalue()


def check_function(name: str, value: Any, arguments: Sequence[Any]) -> None:
    """Check a method or filter called ``name`` on ``value``; raises :class:`TemplateLimitError`."""
    if (rule := _RULES.get(name)) is not None:
        rule(value, arguments)


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Check ``left operator right``; raises :class:`TemplateLimitError`."""
    if operator == "+":  # the commonest, and as long as what goes in
        return
    if operator == "*":
        for sequence, count in ((left, right), (right, left)):
            if isinstance(sequence, str | list | tuple) and isinstance(count, int):
                check_length(len(sequence) * count)
    elif operator == "**":
        _check_power(left, right)
    elif operator == "%" and isinstance(left, str):
        _format(left, [right])


def _written_length(value: Any) -> int:
    """About how long ``str(value)`` is. A list may hold itself many times over, so this stops in time."""
    length = 0
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            length += len(item)
        elif isinstance(item, dict):
            length += 2 * len(item)
            pending += item
            pending += item.values()
        elif isinstance(item, _COLLECTIONS):
            length += len(item)
            pending += item
        else:
            length += len(str(item))
        check_length(length)
    return length


def _check_power(base: Any, exponent: Any) -> None:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > MAX_BITS:
        raise TemplateLimitError(f"makes a number of more than {MAX_BITS:,} bits")


def _pad(value: Any, arguments: Sequence[Any]) -> None:
    if any(isinstance(argument, int) and argument > MAX_WIDTH for argument in arguments):
        raise TemplateLimitError(f"pads to more than {MAX_WIDTH:,}")


def _indent(value: Any, arguments: Sequence[Any]) -> None:
    _pad(value, arguments)
    width = max(
        (len(a) if isinstance(a, str) else a for a in arguments if isinstance(a, str | int)), default=4
    )
    check_length(len(str(value).splitlines()) * width)


def _format(value: Any, arguments: Sequence[Any]) -> None:
    pattern = str(value)
    if _REFUSED_FORMAT.search(pattern.replace("{{", "").replace("}}", "")):
        raise TemplateLimitError(f"formats to a width of more than {MAX_WIDTH - 1:,}, or an attribute")
    num_fields = max(pattern.count("%"), pattern.count("{"))
    check_length(num_fields * (MAX_WIDTH + _written_length(list(arguments))))


def _replace(value: Any, arguments: Sequence[Any]) -> None:
    if len(arguments) >= 2:
        old, new = str(arguments[0]), str(arguments[1])
        check_length(str(value).count(old) * len(new))


def _sum(value: Any, arguments: Sequence[Any]) -> None:
    if any(isinstance(argument, list | tuple) for argument in arguments):
        raise TemplateLimitError("sums lists")


_RULES: Mapping[str, Callable[[Any, Sequence[Any]], None]] = {
    **dict.fromkeys(("batch", "center", "ljust", "rjust", "round", "slice", "zfill"), _pad),
    "format": _format,
    "indent": _indent,
    "replace": _replace,
    "sum": _sum,
    "tojson": _pad,
}
