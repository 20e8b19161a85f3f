"""Grammars that make an answer hold calls: some call at least, or well-formed ones where there are any.

The arguments of a call follow the schema of its tool. Written in Lark's notation, as
``StructuredOutputs(grammar=…)`` takes it. Knows no request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from triolet.text.lark import lark_string
from triolet.text.reasoning import ReasoningFormat
from triolet.text.tool_parsers.tool_format import ToolFormat

__all__ = ["CallGrammar", "arguments_schema"]

NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def arguments_schema(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the arguments must be: an object, and where it has named members, no others unless it says so."""
    if not parameters:
        return dict(NO_PARAMETERS)
    schema = {"type": "object"} | dict(parameters)
    if "properties" in schema and not schema.keys() & {
        "patternProperties",
        "$ref",
        "allOf",
        "anyOf",
        "oneOf",
    }:
        schema.setdefault("additionalProperties", False)
    return schema


@dataclass(frozen=True, slots=True, kw_only=True)
class CallGrammar:
    """``schemas``: of the arguments, by name of the tool. ``special_tokens``: their names in the vocabulary.

    ``reasoning``: the tags between which the model may write anything before that, ``is_reasoning_open`` if
    the prompt has opened them. Without ``schemas`` there are no calls.
    """

    form: ToolFormat
    schemas: Mapping[str, Any]
    is_parallel: bool = True
    special_tokens: Collection[str] = ()
    reasoning: ReasoningFormat | None = None
    is_reasoning_open: bool = False

    @property
    def rules(self) -> list[str]:
        """The names of the rules that hold the schemas, each on a line of its own."""
        return [f"body_{number}" for number in range(len(self.schemas))]

    def forced(self) -> str:
        """One call at least, and nothing else but reasoning."""
        return self._grammar(f"start: {self._prefix()} calls", self._text(self.form.shape.opening))

    def free(self, answer: Mapping[str, Any] | None = None) -> str:
        """Calls, or an answer: one that follows the schema ``answer``, or words."""
        trigger = self.form.shape.trigger
        if answer is not None:
            either = "(calls | answer)" if self.schemas else "answer"
            start = [f"start: {self._prefix()} {either}", f"answer: %json {json.dumps(answer)}"]
        elif trigger is None:
            start = ["start: (calls | words)?", r"words: /\s*[^\s{\[](.|\n)*/"]
        else:
            start = ["start: TEXT | lead calls", *self._lazy("lead", trigger)]
            return self._grammar("\n".join(start), "", triggered=trigger)
        return self._grammar("\n".join(start), self._text(self.form.shape.opening))

    def _grammar(self, start: str, opening: str, triggered: str = "") -> str:
        """``triggered`` is the text that was read before the calls begin."""
        lines = ["%llguidance {}", start, r"TEXT: /(.|\n)*/"]
        if self.schemas:
            lines += self._calls(opening, triggered)
        if self.reasoning is not None:
            lines += self._lazy("thought", self.reasoning.closing)
        return "\n".join(lines) + "\n"

    def _calls(self, opening: str, triggered: str) -> list[str]:
        shape = self.form.shape
        # What is the same for all tools stands once: the size of a grammar is bounded.
        head, _, _ = shape.before.partition("{name}")
        more = f"({self._text(shape.between)} call)*" if self.is_parallel else ""
        first = "call"
        lines = []
        if triggered:
            first = "first"
            lines.append(f"first: {self._text((shape.opening + head).removeprefix(triggered))} body")
        lines += [
            f"calls: {opening} {first} {more} {self._text(shape.closing)}",
            f"call: {self._text(head)} body",
            f"body: ({' | '.join(self.rules)}) {self._text(shape.after)}",
        ]
        for rule, (name, schema) in zip(self.rules, self.schemas.items(), strict=True):
            rest = shape.call_before(name).removeprefix(head)
            lines.append(f"{rule}: {self._text(rest)} %json {json.dumps(schema)}")
        return lines

    def _prefix(self) -> str:
        """What may come before: reasoning that is closed, and the empty lines after it."""
        if self.reasoning is None:
            return ""
        if self.is_reasoning_open:
            return r"thought /\n{0,2}/"
        return rf"({self._text(self.reasoning.opening)} thought /\n{{0,2}}/)?"

    def _lazy(self, rule: str, end: str) -> list[str]:
        """A rule for any text up to the first ``end``, and that."""
        pieces = self._pieces(end)
        if pieces[0] in self.special_tokens:
            return [f"{rule}: TEXT {self._text(end)}"]
        assert len(pieces) == 1, "what ends a text begins with a special token, or has none"
        return [f"{rule}[lazy]: TEXT {lark_string(end)}"]

    def _text(self, text: str) -> str:
        """``text`` as Lark has it: special tokens by their names, the rest as literals."""
        return " ".join(
            piece if piece in self.special_tokens else lark_string(piece) for piece in self._pieces(text)
        )

    def _pieces(self, text: str) -> list[str]:
        if not self.special_tokens:
            return [text] if text else []
        pattern = "|".join(re.escape(token) for token in sorted(self.special_tokens, key=len, reverse=True))
        return [piece for piece in re.split(f"({pattern})", text) if piece]
