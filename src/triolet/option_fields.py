"""How an option is declared and checked, whatever it means: types, ranges, and errors that name its flag.

Knows no option by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, fields
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from triolet.errors import UsageError

__all__ = [
    "check_at_least",
    "check_names",
    "check_not_negative",
    "check_types",
    "choices_of",
    "flag_of",
    "option",
    "usage_error",
]

KIND_NAMES: dict[Any, str] = {
    str: "a non-empty string",
    Path: "a path",
    int: "an integer",
    bool: "true or false",
    float: "a number",
    tuple[str, ...]: "a name or a list of names",
    NoneType: "None",
}


def option(
    default: Any, text: str, *, group: str, metavar: str | None = None, is_secret: bool = False
) -> Any:
    """A dataclass field with what the command line and the reference say of it.

    The value of one that ``is_secret`` is shown neither in errors nor by ``repr()``.
    """
    metadata = {"help": text, "group": group, "metavar": metavar}
    return field(default=default, metadata=metadata, repr=not is_secret)


def flag_of(name: str) -> str:
    """The command line flag of a field: ``max_num_seqs`` → ``--max-num-seqs``."""
    return "--" + name.replace("_", "-")


def usage_error(args: Any, name: str, problem: str) -> UsageError:
    """That the value of one option is wrong: field, flag, problem and value, unless that is secret."""
    is_shown = next(one.repr for one in fields(args) if one.name == name)
    got = f", got {getattr(args, name)!r}" if is_shown else ""
    return UsageError(f"{name} ({flag_of(name)}) {problem}{got}", param=name)


def check_names(cls: type, names: Iterable[str]) -> None:
    """Raises UsageError for a name that no field of ``cls`` has, with the nearest that there is."""
    known = {one.name for one in fields(cls)}
    for name in sorted(set(names) - known):
        close = get_close_matches(name, known, n=1)
        remedy = f"did you mean {close[0]}?" if close else "remove it"
        raise UsageError(f"{name}: there is no such option here; {remedy}", param=name)


def check_types(args: Any) -> None:
    """Raises UsageError for a value of another type than the field is declared with."""
    for name, hint in get_type_hints(type(args)).items():
        value = getattr(args, name)
        if not any(_is_a(value, kind) for kind in _kinds_of(hint)):
            kinds = " or ".join(map(_name_of, _kinds_of(hint)))
            raise usage_error(args, name, f"must be {kinds}")


def check_at_least(args: Any, low: int, names: Iterable[str]) -> None:
    """Raises UsageError for an integer below ``low``; what is not given, or a word, is not meant."""
    for name in names:
        value = getattr(args, name)
        if isinstance(value, int) and value < low:
            raise usage_error(args, name, f"must be {low} or more")


def check_not_negative(args: Any, names: Iterable[str]) -> None:
    """Raises UsageError for a number that is negative or not finite."""
    for name in names:
        if not 0 <= getattr(args, name) < float("inf"):
            raise usage_error(args, name, "must be 0 or more")


def choices_of(cls: type) -> dict[str, tuple[str, ...]]:
    """The fields that take one of a few values, with those values."""
    hints = get_type_hints(cls)
    return {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}


def _name_of(kind: Any) -> str:
    if get_origin(kind) is not Literal:
        return KIND_NAMES[kind]
    choices = get_args(kind)
    return f"one of {', '.join(choices)}" if len(choices) > 1 else str(choices[0])


def _kinds_of(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _is_a(value: object, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_is_a(item, str) for item in value)
    if kind is str:
        return isinstance(value, str) and value != ""
    if kind is bool:
        return isinstance(value, bool)
    return isinstance(value, int | float if kind is float else kind) and not isinstance(value, bool)
