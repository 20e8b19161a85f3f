"""``tools``, ``tool_choice`` and ``parallel_tool_calls`` of a chat: strict types, and what they ask for.

Knows neither the engine nor how a model writes calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct, to_builtins

from triolet.errors import InvalidRequestError
from triolet.text.json_schema import prepare_schema
from triolet.text.tool_grammar import arguments_schema

__all__ = ["Function", "Tool", "ToolUse", "tool_use_of"]

MAX_TOOLS = 1024
MAX_NAME = 128
"""As long as Anthropic's may be; those of OpenAI have 64 at most."""
MODES = ("auto", "required")


class Function(Struct, omit_defaults=True):
    """What a tool is. ``strict`` holds its arguments to the schema wherever it is called."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Struct):
    """``{"type": "function", "function": {…}}``, the only kind there is."""

    type: str
    function: Function


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The tools that may be called. ``is_forced``: one must be; ``is_parallel``: several may be.

    ``schemas``: what the arguments must be, by name, where they are enforced. ``places``: of each of these
    tools, among those that were sent.
    """

    tools: Sequence[Tool]
    places: Sequence[int]
    schemas: dict[str, Any]
    is_forced: bool
    is_parallel: bool
    is_enforced: bool

    @property
    def described(self) -> list[dict[str, Any]]:
        """The tools as chat templates take them."""
        return [_described(tool) for tool in self.tools]

    @property
    def fields(self) -> list[str]:
        """Where each of the schemas was sent."""
        return [f"tools[{index}].function.parameters" for index in self.places]

    @property
    def parameters(self) -> dict[str, Any]:
        """The schemas of the parameters as they were sent, by name."""
        return {tool.function.name: tool.function.parameters or {} for tool in self.tools}


def tool_use_of(tools: Sequence[Tool] | None, tool_choice: Any, is_parallel: bool | None) -> ToolUse | None:
    """What is asked for; None where nothing may be called. Raises InvalidRequestError naming the field."""
    _check_tools(tools or ())
    chosen, mode = _chosen(tools or (), tool_choice)
    if mode == "none" or not chosen:
        return None
    is_forced = mode == "required"
    schemas: dict[str, Any] = {}
    places: list[int] = []
    names = {tool.function.name for tool in chosen}
    for index, tool in enumerate(tools or ()):
        if tool.function.name not in names:
            continue
        places.append(index)
        is_held = is_forced or bool(tool.function.strict)
        schemas[tool.function.name] = _schema_of(tool, index) if is_held else {"type": "object"}
    return ToolUse(
        tools=chosen,
        places=places,
        schemas=schemas,
        is_forced=is_forced,
        is_parallel=is_parallel is not False,
        is_enforced=is_forced or is_parallel is False or any(tool.function.strict for tool in chosen),
    )


def _chosen(tools: Sequence[Tool], choice: Any) -> tuple[Sequence[Tool], str]:
    """The tools that a choice leaves, and its mode."""
    if choice is None:
        return tools, "auto"
    if choice in ("auto", "none", "required"):
        if choice == "required" and not tools:
            raise _refusal("tool_choice", "'required' needs tools")
        return tools, choice
    match choice:
        case {"type": "function", "function": {"name": str(name)}}:
            return _named(tools, [name]), "required"
        case {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(some)}} if mode in MODES:
            return _named(tools, [_name_of(item) for item in some]), mode
    raise _refusal(
        "tool_choice",
        "must be 'auto', 'none', 'required', or {'type': 'function', 'function': {'name': …}}, "
        f"got {choice!r:.100}",
    )


def _name_of(item: Any) -> Any:
    function = item.get("function") if isinstance(item, dict) else None
    return function.get("name") if isinstance(function, dict) else None


def _named(tools: Sequence[Tool], names: Sequence[Any]) -> list[Tool]:
    known = {tool.function.name: tool for tool in tools}
    if not names or not all(isinstance(name, str) and name in known for name in names):
        raise _refusal("tool_choice", f"names {names!r:.100}, which is not among the tools")
    return [known[name] for name in dict.fromkeys(names)]


def _check_tools(tools: Sequence[Tool]) -> None:
    if len(tools) > MAX_TOOLS:
        raise _refusal("tools", f"{len(tools)} of them, at most {MAX_TOOLS}")
    names: set[str] = set()
    for index, tool in enumerate(tools):
        name, where = tool.function.name, f"tools[{index}]"
        if tool.type != "function":
            raise _refusal(f"{where}.type", f"must be 'function', got {tool.type!r:.60}")
        if not 0 < len(name) <= MAX_NAME or not all(
            c.isascii() and (c.isalnum() or c in "_-.") for c in name
        ):
            raise _refusal(
                f"{where}.function.name",
                f"1 to {MAX_NAME} letters, digits and _ - . are allowed, got {name!r:.160}",
            )
        if name in names:
            raise _refusal(f"{where}.function.name", f"{name!r} is there twice")
        names.add(name)


def _schema_of(tool: Tool, index: int) -> dict[str, Any]:
    schema = arguments_schema(tool.function.parameters)
    try:
        prepare_schema(schema)
    except ValueError as error:
        raise _refusal(f"tools[{index}].function.parameters", str(error)) from None
    return schema


def _described(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = to_builtins(tool.function)
    function.pop("strict", None)
    return {"type": "function", "function": function}


def _refusal(param: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"{param}: {problem}", param=param)
