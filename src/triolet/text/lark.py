"""Grammars in Lark's notation made ready for llguidance: bounded, and with every JSON schema in them checked.

llguidance is native code that recurses along rules and brackets. What bounds it is counted in the text as it
stands, strings and comments included, so that no way of reading the text differently gets round it.

This module knows no requests and no tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from llguidance.gbnf_to_lark import gbnf_to_lark

__all__ = ["lark_from_gbnf", "lark_string", "prepare_lark"]

MAX_CHARACTERS = 32_768
MAX_NESTING = 800
"""Rules and opening brackets; a stack of 8 MiB holds a chain of about 2600."""
MAX_INTERSECTIONS = 8
"""The time to intersect terminals doubles with each of them."""
MAX_GBNF_RULES = 500

_JSON = re.compile(r"%json\s*")
_UNENFORCED = re.compile(r"\[[^\]\n]*\b(stop|temperature|max_tokens)\s*=")
_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)


def prepare_lark(text: str, prepare_schema: Callable[[Any], str]) -> str:
    """``text`` with each schema after ``%json`` replaced by what ``prepare_schema`` makes of it.

    Raises ValueError for a grammar over a limit, for what would not be enforced, and whatever
    ``prepare_schema`` raises.
    """
    pieces: list[str] = []
    rest = text
    while match := _JSON.search(rest):
        try:
            schema, end = json.JSONDecoder().raw_decode(rest, match.end())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"%json: a JSON schema must follow: {error!s:.200}") from None
        pieces += rest[: match.start()], f"%json {prepare_schema(schema)}"
        rest = rest[end:]
    _check("".join([*pieces[::2], rest]))
    return "".join([*pieces, rest])


def _check(text: str) -> None:
    """``text`` is all but the schemas."""
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"{len(text)} characters, at most {MAX_CHARACTERS}; make it smaller")
    num_levels = text.count(":") + sum(text.count(bracket) for bracket in "([{~")
    if num_levels > MAX_NESTING:
        raise ValueError(f"{num_levels} rules and brackets, at most {MAX_NESTING}; make it smaller")
    if text.count("&") > MAX_INTERSECTIONS:
        raise ValueError(f"the operator & occurs more than {MAX_INTERSECTIONS} times; write it without")
    if match := _UNENFORCED.search(text):
        raise ValueError(f"the rule attribute {match[1]!r} cannot be enforced; remove it")


def lark_from_gbnf(text: str) -> str | None:
    """The same grammar in Lark's notation, or None if ``text`` is not GBNF. Raises ValueError."""
    num_rules = len(_GBNF_RULE.findall(text))
    if not num_rules:
        return None
    if len(text) > MAX_CHARACTERS or num_rules > MAX_GBNF_RULES:
        limits = f"{MAX_CHARACTERS} characters and {MAX_GBNF_RULES} rules"
        raise ValueError(f"a GBNF grammar has at most {limits}; write it in Lark's notation")
    try:
        return gbnf_to_lark(text)
    except RecursionError:
        raise ValueError("the GBNF grammar is nested too deeply; flatten it") from None
    except Exception as error:  # the translator raises Exception itself
        raise ValueError(f"GBNF: {error}") from error


def lark_string(text: str) -> str:
    """A literal that matches ``text``."""
    return json.dumps(text)
