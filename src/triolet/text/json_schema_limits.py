"""How large and how entangled a JSON schema may be, so that compiling it ends soon and in little memory.

llguidance is native code that recurses along nesting and references: too deep a schema would end the process,
and the time to intersect patterns doubles with each of them. This module knows no other keywords.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

__all__ = ["SchemaError", "check_limits", "escaped"]

MAX_DEPTH = 100
"""Objects and lists inside one another."""
MAX_REFERENCED_DEPTH = 1000
"""Depth of the schema and of all that is referenced, together; a stack of 8 MiB holds about 2000."""
MAX_PATTERNS = 16
"""Patterns and formats that one string may have to follow at the same time."""
MAX_OPTIONAL = 400
"""Properties of one object that may be left out: each is a way on after each other."""
MAX_VISITS = 200_000
"""Steps along allOf, anyOf, oneOf and $ref, from every place of the schema."""

IN_PLACE = ("allOf", "anyOf", "oneOf")


class SchemaError(ValueError):
    """``where`` is a JSON pointer to the schema that is wrong, with a ``#`` before it."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"at {where}: {problem}")


def check_limits(schema: Any) -> None:
    """Raises :class:`SchemaError` for a schema over a limit, or a reference to nothing."""
    _check_depth(schema)
    places = list(_mappings(schema, "#"))
    parts = [part for _, part in places]
    targets = {
        reference: _target(schema, reference, where)
        for where, part in places
        if isinstance(reference := part.get("$ref"), str) and reference.startswith("#")
    }
    depth = _depth(schema) + sum(_depth(target) for target in targets.values())
    if depth > MAX_REFERENCED_DEPTH:
        problem = f"$ref: what is referenced is {depth} deep together, at most {MAX_REFERENCED_DEPTH}"
        raise SchemaError("#", f"{problem}; use fewer definitions")
    _check_patterns(parts, targets)
    for part in parts:
        _check_optional(part)


def escaped(name: object) -> str:
    """A name as a step of a JSON pointer (RFC 6901)."""
    return str(name).replace("~", "~0").replace("/", "~1")


def _check_depth(schema: Any) -> None:
    """Level by level, so that no nesting is too deep for the check itself."""
    level = [schema]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise SchemaError("#", f"nested more than {MAX_DEPTH} deep; flatten it")


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value


def _mappings(value: Any, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every mapping within ``value``, itself included, with its place."""
    if isinstance(value, Mapping):
        yield where, value
    names = value if isinstance(value, Mapping) else count()
    for name, inner in zip(names, _inside(value), strict=False):
        yield from _mappings(inner, f"{where}/{escaped(name)}")


def _depth(value: Any) -> int:
    return 1 + max((_depth(inner) for inner in _inside(value)), default=0)


def _target(schema: Any, reference: str, where: str) -> Any:
    place = schema
    for name in reference.removeprefix("#").split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(place, Mapping) and name in place:
            place = place[name]
        elif isinstance(place, list | tuple) and name.isdecimal() and int(name) < len(place):
            place = place[int(name)]
        else:
            raise SchemaError(where, f"$ref: there is nothing at {reference!r:.100}")
    return place


def _check_patterns(parts: list[Mapping[str, Any]], targets: Mapping[str, Any]) -> None:
    num_visits = 0
    for part in parts:
        if not any(keyword in part for keyword in (*IN_PLACE, "$ref")):
            continue
        waiting, followed, num_patterns = [part], set[str](), 0
        while waiting:
            place = waiting.pop()
            num_visits += 1
            if not isinstance(place, Mapping):
                continue
            num_patterns += ("pattern" in place) + ("format" in place)
            if num_patterns > MAX_PATTERNS or num_visits > MAX_VISITS:
                raise SchemaError(
                    "#",
                    "pattern: a string may have to follow more patterns and formats at once than the "
                    f"{MAX_PATTERNS} that can be intersected in time (through allOf, anyOf, oneOf and $ref)",
                )
            for keyword in IN_PLACE:
                if isinstance(place.get(keyword), list | tuple):
                    waiting.extend(place[keyword])
            reference = place.get("$ref")
            if isinstance(reference, str) and reference in targets and reference not in followed:
                followed.add(reference)
                waiting.append(targets[reference])


def _check_optional(part: Mapping[str, Any]) -> None:
    properties, required = part.get("properties"), part.get("required", ())
    if not isinstance(properties, Mapping) or not isinstance(required, list | tuple):
        return
    num_optional = len(properties) - sum(name in properties for name in required if isinstance(name, str))
    if num_optional > MAX_OPTIONAL:
        raise SchemaError(
            "#",
            f"properties: {num_optional} of one object are optional, at most {MAX_OPTIONAL}; "
            "list more of them in 'required'",
        )
