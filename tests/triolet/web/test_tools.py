"""What a body asks for of tools."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from triolet.errors import InvalidRequestError
from triolet.web.tools import Tool, ToolUse, tool_use_of


def tool(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def use(*tools: dict[str, Any], choice: Any = None, is_parallel: bool | None = None) -> ToolUse | None:
    return tool_use_of(msgspec.convert(list(tools), list[Tool]), choice, is_parallel)


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, tools: Any) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


F, G = tool("f", parameters={"properties": {"x": {"type": "integer"}}}, description="Do."), tool("g")


@pytest.mark.parametrize(
    ("choice", "names", "is_forced"),
    [
        (None, ["f", "g"], False),
        ("auto", ["f", "g"], False),
        ("required", ["f", "g"], True),
        (named("g"), ["g"], True),
        (allowed("auto", [named("f")]), ["f"], False),
        (allowed("required", [named("f")]), ["f"], True),
    ],
)  # fmt: skip
def test_the_choice(choice: Any, names: list[str], is_forced: bool) -> None:
    asked = use(F, G, choice=choice)
    assert asked is not None
    assert list(asked.schemas) == names
    assert asked.is_forced is asked.is_enforced is is_forced


def test_there_is_room_for_the_tools_of_agents() -> None:
    """Which come from several servers, and have their names before their own."""
    names = [f"mcp__{number:x<100}__tool" for number in range(500)]
    asked = use(*map(tool, names), choice="required")
    assert asked is not None
    assert list(asked.schemas) == names


def test_nothing_may_be_called() -> None:
    assert use(F, choice="none") is None
    assert use() is use(choice="auto") is tool_use_of(None, None, None) is None


def test_what_is_enforced() -> None:
    forced, strict = use(F, G, choice="required"), use(tool("f", strict=True), G)
    one = use(F, is_parallel=False)
    assert forced is not None
    assert strict is not None
    assert one is not None
    assert forced.schemas["f"]["additionalProperties"] is False
    assert forced.schemas["g"]["properties"] == {}
    assert strict.is_enforced
    assert strict.schemas["g"] == {"type": "object"}
    assert (one.is_enforced, one.is_parallel) == (True, False)


def test_the_template_gets_what_was_sent() -> None:
    asked = use(tool("f", strict=True, parameters={"x-y": 1}, description="Do."))
    assert asked is not None
    assert asked.described == [tool("f", parameters={"x-y": 1}, description="Do.")]
    assert asked.parameters == {"f": {"x-y": 1}}


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        ([F, F], None, "tools[1].function.name"),
        ([tool("")], None, "tools[0].function.name"),
        ([tool("a b")], None, "tools[0].function.name"),
        ([tool("x" * 129)], None, "tools[0].function.name"),
        ([F | {"type": "custom"}], None, "tools[0].type"),
        ([tool(f"f{i}") for i in range(1025)], None, "tools"),
        ([F], "any", "tool_choice"),
        ([F], named("g"), "tool_choice"),
        ([F], allowed("auto", [1]), "tool_choice"),
        ([F], allowed("x", [named("f")]), "tool_choice"),
        ([F], allowed("auto", "f"), "tool_choice"),
        ([], "required", "tool_choice"),
        ([], named("f"), "tool_choice"),
        ([G, tool("f", parameters={"not": {}})], "required", "tools[1].function.parameters"),
    ],
)
def test_what_is_wrong_is_named(tools: list[dict[str, Any]], choice: Any, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        use(*tools, choice=choice)
    assert caught.value.param == param


def test_a_schema_that_is_not_enforced_may_have_anything_in_it() -> None:
    assert use(tool("f", parameters={"not": {}})) is not None
