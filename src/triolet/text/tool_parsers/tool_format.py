"""What is known of one way of writing calls: how to see that a model has it, to read it and to force it.

A format of one's own is a :class:`ToolFormat` in a module of one's own; ``--tool-call-parser module:NAME``
takes it. Knows no format itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from triolet.text.parsed_text import AnswerParser
from triolet.text.reasoning import ReasoningFormat

__all__ = ["CallShape", "ToolFormat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallShape:
    """How calls that are forced by a grammar are written; ``{name}`` stands for the name of the tool.

    ``trigger`` is the text by which they are told from an answer in words; it is how ``opening`` and
    ``before`` together begin. None: calls begin with a bracket, at the very start of the answer.
    """

    opening: str = ""
    before: str
    after: str = ""
    between: str = ""
    closing: str = ""
    trigger: str | None

    def call_before(self, name: str) -> str:
        return self.before.replace("{name}", name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """A format. ``written_in`` finds it in a chat template.

    ``new_parser`` takes the schemas of the tools' parameters by name, and what makes ids of calls.
    ``markers`` may be special tokens of the model, which must then be in the text. A format with
    ``reasoning`` also tells that apart, and parses every answer of its models, tools or none.
    """

    name: str
    written_in: re.Pattern[str]
    new_parser: Callable[[Mapping[str, Any], Callable[[], str]], AnswerParser]
    markers: tuple[str, ...]
    shape: CallShape
    reasoning: ReasoningFormat | None = None
    id_prefix: str = "call_"
    id_length: int = 24

    def is_written_by(self, template: str) -> bool:
        return self.written_in.search(template) is not None
