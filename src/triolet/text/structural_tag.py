"""Structural tags as a grammar: free text in which a trigger begins a part that follows a schema.

The notation is that of vLLM and SGLang: ``triggers``, and ``structures`` of ``begin``, ``schema``, ``end``.
This module knows no requests; special tokens are given to it by their names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triolet.text.lark import lark_string

__all__ = ["structural_tag_grammar"]

MAX_STRUCTURES = 256


@dataclass(frozen=True, slots=True)
class _Structure:
    begin: str
    schema: Any
    end: str


def structural_tag_grammar(
    tag: Any, prepare_schema: Callable[[Any], str], special_tokens: Collection[str]
) -> str:
    """The grammar in Lark's notation. Raises ValueError naming the field, and what ``prepare_schema`` does.

    A trigger or an end that is one of ``special_tokens`` is that token, and not text that spells it.
    """
    triggers, structures = _read(tag)
    lines = [
        "%llguidance {}",
        f"start: ({' | '.join(f'tag_{number}' for number in range(len(triggers)))})* free_text",
        "free_text: TEXT",
        r"TEXT: /(.|\n)*/",
    ]
    for number, trigger in enumerate(triggers):
        bodies = [
            f"{_text(structure.begin.removeprefix(trigger))} %json {prepare_schema(structure.schema)}"
            f" {_token_or_text(structure.end, special_tokens)}"
            for structure in structures
            if structure.begin.startswith(trigger)
        ]
        if not bodies:
            raise ValueError(f"triggers[{number}]: no structure begins with {trigger!r}; remove it")
        if trigger in special_tokens:
            opening = f"TEXT {trigger}"
        else:
            lines.append(f"opening_{number}[lazy]: TEXT {lark_string(trigger)}")
            opening = f"opening_{number}"
        lines.append(f"tag_{number}: {opening} ({' | '.join(bodies)})")
    return "\n".join(lines) + "\n"


def _text(text: str) -> str:
    return lark_string(text) if text else ""


def _token_or_text(text: str, special_tokens: Collection[str]) -> str:
    return text if text in special_tokens else _text(text)


def _read(tag: Any) -> tuple[tuple[str, ...], tuple[_Structure, ...]]:
    if not isinstance(tag, Mapping):
        raise ValueError(f"must be an object with 'triggers' and 'structures', got {tag!r:.60}")
    unknown = sorted(str(name) for name in tag if name not in ("type", "triggers", "structures"))
    if unknown or tag.get("type", "structural_tag") != "structural_tag":
        raise ValueError(f"{(unknown or ['type'])[0]}: not known here; give 'triggers' and 'structures'")
    triggers = tuple(_field(tag, "triggers", list | tuple))
    for number, trigger in enumerate(triggers):
        if not isinstance(trigger, str) or not trigger:
            raise ValueError(f"triggers[{number}]: must be a non-empty string")
        if any(trigger.startswith(other) for other in triggers[:number] + triggers[number + 1 :]):
            raise ValueError(f"triggers[{number}]: another trigger begins {trigger!r} already; remove it")
    structures = tuple(
        _structure(item, f"structures[{number}]", triggers)
        for number, item in enumerate(_field(tag, "structures", list | tuple))
    )
    if not triggers or not structures or len(structures) > MAX_STRUCTURES:
        raise ValueError(f"structures: at least one, at most {MAX_STRUCTURES}, and a trigger for each")
    return triggers, structures


def _structure(item: Any, where: str, triggers: Sequence[str]) -> _Structure:
    if not isinstance(item, Mapping):
        raise ValueError(f"{where}: must be an object with 'begin', 'schema' and 'end'")
    begin, end = (_field(item, name, str, where + ".") for name in ("begin", "end"))
    unknown = sorted(str(name) for name in item if name not in ("begin", "schema", "end"))
    if unknown:
        raise ValueError(f"{where}.{unknown[0]}: not known here; give 'begin', 'schema' and 'end'")
    if not any(begin.startswith(trigger) for trigger in triggers):
        raise ValueError(f"{where}.begin: must begin with one of the triggers, got {begin!r:.60}")
    return _Structure(begin, item.get("schema", {}), end)


def _field(holder: Mapping[str, Any], name: str, kind: Any, where: str = "") -> Any:
    value = holder.get(name)
    if not isinstance(value, kind):
        raise ValueError(f"{where}{name}: missing or of the wrong type, got {value!r:.60}")
    return value
