"""All formats of calls, and which one a model has, found in its chat template."""

from __future__ import annotations

import importlib
from typing import TypeVar

from triolet.errors import UsageError
from triolet.text.reasoning import REASONING_FORMATS, ReasoningFormat
from triolet.text.tool_parsers.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from triolet.text.tool_parsers.function_tag import FUNCTION_TAG, QWEN_CODER
from triolet.text.tool_parsers.gemma import FUNCTION_GEMMA, GEMMA4
from triolet.text.tool_parsers.harmony import HARMONY
from triolet.text.tool_parsers.hermes import HERMES
from triolet.text.tool_parsers.llama import LLAMA
from triolet.text.tool_parsers.mistral import MISTRAL, MISTRAL_ARGS
from triolet.text.tool_parsers.tool_format import ToolFormat

__all__ = ["TOOL_FORMATS", "find_tool_format", "named_reasoning_format", "named_tool_format"]

T = TypeVar("T")

TOOL_FORMATS = (
    HARMONY, MISTRAL_ARGS, MISTRAL, DEEPSEEK_V3, DEEPSEEK_V31, GEMMA4, FUNCTION_GEMMA, QWEN_CODER, HERMES,
    FUNCTION_TAG, LLAMA,
)  # fmt: skip
"""The more particular ones first."""


def find_tool_format(template: str) -> ToolFormat | None:
    """The format that a chat template writes calls in; None if it has none, or one that is not known."""
    return next((known for known in TOOL_FORMATS if known.is_written_by(template)), None)


def named_tool_format(name: str) -> ToolFormat:
    """A format by its name, or ``module:NAME`` for one of one's own. Raises :class:`UsageError`."""
    return _named("tool_call_parser", name, {known.name: known for known in TOOL_FORMATS}, ToolFormat)


def named_reasoning_format(name: str) -> ReasoningFormat:
    """The same for reasoning. Raises :class:`UsageError`."""
    known = {known.name: known for known in REASONING_FORMATS}
    return _named("reasoning_parser", name, known, ReasoningFormat)


def _named(param: str, name: str, known: dict[str, T], kind: type[T]) -> T:
    if name in known:
        return known[name]
    flag = "--" + param.replace("_", "-")
    module, colon, attribute = name.partition(":")
    if not colon:
        names = ", ".join(known)
        problem = f"must be one of {names}, or module:NAME; got {name!r}"
        raise UsageError(f"{param} ({flag}) {problem}", param=param)
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"{param} ({flag}): cannot load {name!r}: {error}", param=param) from error
    if not isinstance(found, kind):
        raise UsageError(f"{param} ({flag}): {name!r} is no {kind.__name__}", param=param)
    return found
