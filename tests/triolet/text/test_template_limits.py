"""The rules pass what is short and refuse what would be long."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from triolet.text.template_limits import (
    MAX_BITS,
    MAX_CHARACTERS,
    TemplateLimitError,
    check_function,
    check_operator,
    concatenate,
    measure,
)

LONG = "a" * 10_000
MANY = ["b"] * 10_000


@pytest.mark.parametrize(
    ("name", "value", "arguments"),
    [
        ("center", "a", [1_001]),
        ("indent", "\n" * 20_000, [999]),
        ("indent", "\n" * 20_000, [LONG]),
        ("replace", LONG, ["a", LONG]),
        ("replace", LONG, ["", LONG]),
        ("format", "%9999d", []),
        ("format", "{x:.{y}}", []),
        ("format", "{0.x}", []),
        ("format", "{0[x]}", []),
        ("format", "{0}" * 1_000, [LONG]),
        ("round", 1.5, [10**9]),
        ("sum", [[1]], [None, []]),
    ],
)
def test_functions_that_would_make_too_much(name: str, value: Any, arguments: list[Any]) -> None:
    with pytest.raises(TemplateLimitError):
        check_function(name, value, arguments)


@pytest.mark.parametrize(
    ("name", "value", "arguments"),
    [
        ("center", "a", [1_000]),
        ("indent", "a\nb", []),
        ("indent", "a\nb", ["  ", True]),
        ("replace", LONG, ["a", ""]),
        ("replace", LONG, ["b", LONG]),
        ("replace", LONG, ["a"]),
        ("format", "%5.2f in 2024, {{2024}}", []),
        ("upper", LONG, []),
    ],
)
def test_functions_that_are_fine(name: str, value: Any, arguments: list[Any]) -> None:
    check_function(name, value, arguments)


@pytest.mark.parametrize(
    ("operator", "left", "right"),
    [
        ("*", "a", MAX_CHARACTERS + 1),
        ("*", MAX_CHARACTERS + 1, (1,)),
        ("**", 2, 1 << 20),
        ("**", 10**300, 100),
        ("%", "%1234d", 1),
    ],
)
def test_operators_that_would_make_too_much(operator: str, left: Any, right: Any) -> None:
    with pytest.raises(TemplateLimitError):
        check_operator(operator, left, right)


@pytest.mark.parametrize(
    ("operator", "left", "right"),
    [
        ("*", "a", 3),
        ("*", 10**9, 10**9),
        ("**", 2, 64),
        ("**", 2.0, 0.5),
        ("%", 5, 3),
        ("%", "%d", 1),
        ("+", 1, 1),
    ],
)
def test_operators_that_are_fine(operator: str, left: Any, right: Any) -> None:
    check_operator(operator, left, right)


def doubled(times: int) -> list[Any]:
    value: list[Any] = ["a"]
    for _ in range(times):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        "a" * (MAX_CHARACTERS + 1),
        1 << MAX_BITS,
        ["a" * 50_000] * 100,
        {"a" * 3_000_000: "a" * 3_000_000},
        dict.fromkeys(range(100), "a" * 50_000).values(),
        [1 << (MAX_BITS - 1)] * 4_000,
        doubled(60),
    ],
)
def test_values_that_are_too_long(value: Any) -> None:
    with pytest.raises(TemplateLimitError):
        measure(value)


@pytest.mark.parametrize(
    ("value", "cost"),
    [
        ("abc", 67),
        ([1, "abc"], 192),
        ({"a": 1}, 128),
        ((), 64),
        (5, 0),
        (2.5, 0),
        (None, 0),
        (iter(()), 64),
    ],
)
def test_what_values_cost(value: Any, cost: int) -> None:
    assert measure(value) == cost


def test_concatenating_stops_in_time() -> None:
    assert concatenate(["a", 1, None], "-") == "a-1-None"
    assert concatenate([]) == ""
    with pytest.raises(TemplateLimitError):
        concatenate(itertools.repeat("a"), LONG)
