"""Errors about a grammar that was made of tools, and maybe of an answer's schema, as errors of what was sent.

The engine knows the grammar alone, and says at which of its lines it stopped. Knows nothing of HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from triolet.errors import InvalidRequestError
from triolet.text.json_schema import meaning_of
from triolet.web.structured_outputs import renamed

__all__ = ["CallErrors"]

_GRAMMAR = "structured_outputs.grammar"
_AT_LINE = re.compile(
    rf"{re.escape(_GRAMMAR)}: at (?P<line>\d+)\(\d+\): (?:failed to compile JSON schema: )?(?P<problem>.*)",
    re.DOTALL,
)
_EXCERPT = re.compile(r" \d+ \| ")
"""How the lines around it are shown after the problem."""


@dataclass(frozen=True, slots=True)
class CallErrors:
    """``fields``: which field each rule of the ``grammar`` was made of, by its name; ``whole``: all of it."""

    grammar: str
    fields: Mapping[str, str]
    whole: str = "tools"

    def explain(self, error: InvalidRequestError) -> InvalidRequestError:
        """An error of the engine in terms of what was sent; one about something else as it is."""
        if error.param == _GRAMMAR and (found := _AT_LINE.fullmatch(error.message)):
            lines = dict(enumerate(self.grammar.split("\n"), 1))
            rule, _, _ = lines.get(int(found["line"]), "").partition(":")
            if field := self.fields.get(rule):
                problem = meaning_of(_EXCERPT.split(found["problem"], maxsplit=1)[0])
                return type(error)(f"{field}: {problem}", param=field)
        return renamed(error, self.whole)
