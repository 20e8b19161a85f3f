"""What can be asked of a running engine and how it is checked: modes of pausing, levels of sleep, parts.

``abort`` ends every request at once, ``wait`` lets those that have begun finish, ``keep`` freezes them as
they are. Requests are accepted all the while, and wait. Level 0 of sleep only pauses; from level 1 on the
memory of weights and KV cache is given back.

This module knows nothing of how any of it is done.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

from triolet.errors import ConflictError, InvalidRequestError

__all__ = ["PauseMode", "SleepPart", "check_level", "check_mode", "check_parts", "resumed_early"]

PauseMode = Literal["abort", "wait", "keep"]
SleepPart = Literal["weights", "kv_cache", "scheduling"]

LEVELS = (0, 1, 2)


def check_mode(mode: Any) -> None:
    """Raises InvalidRequestError naming the choices."""
    if mode not in get_args(PauseMode):
        raise _not_one_of("mode", mode, get_args(PauseMode))


def check_level(level: Any) -> None:
    """Raises InvalidRequestError naming the choices."""
    if isinstance(level, bool) or level not in LEVELS:
        raise _not_one_of("level", level, LEVELS)


def check_parts(tags: Any, asleep: frozenset[SleepPart]) -> frozenset[SleepPart]:
    """Which of the parts that are asleep are meant by ``tags``; all of them by None.

    Raises InvalidRequestError for anything else than names of parts, and where scheduling was to go on
    without what it needs.
    """
    if tags is None:
        return asleep
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise InvalidRequestError(f"tags: must be a list of parts, got {tags!r}", param="tags")
    chosen = list(tags)
    for tag in chosen:
        if tag not in get_args(SleepPart):
            raise _not_one_of("tags", tag, get_args(SleepPart))
    left = asleep.difference(chosen)
    if "scheduling" in chosen and left:
        raise InvalidRequestError(
            f"tags: scheduling cannot go on while these are asleep: {', '.join(sorted(left))}; wake them too",
            param="tags",
        )
    return asleep.intersection(chosen)


def resumed_early() -> ConflictError:
    """What a pause ends with that somebody else has ended."""
    return ConflictError("the engine was resumed before its pause was complete")


def _not_one_of(param: str, value: Any, choices: tuple[object, ...]) -> InvalidRequestError:
    names = ", ".join(str(choice) for choice in choices)
    return InvalidRequestError(f"{param}: must be one of {names}, got {value!r}", param=param)
