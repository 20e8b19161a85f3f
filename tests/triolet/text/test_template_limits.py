"""The rules pass what is short and refuse what would be long."""

from __future__ import annotations

from typing import Any

import pytest

from triolet.text.template_limits import (
    MAX_CHARACTERS,
    TemplateLimitError,
    check_function,
    check_operator,
    check_result,
)

LONG = "a" * 10_000
MANY = ["b"] * 10_000


@pytest.mark.parametrize(
    ("name", "value", "arguments"),
    [
        ("center", "a", [1_001]),
        ("wordwrap", "a", [79, True, 1_001]),
        ("indent", "\n" * 20_000, [999]),
        ("indent", "\n" * 20_000, [LONG]),
        ("replace", LONG, ["a", LONG]),
        ("replace", LONG, ["", LONG]),
        ("join", LONG, [MANY]),
        ("join", MANY, [LONG]),
        ("join", "", [[LONG] * 2_000]),
        ("format", "%9999d", []),
        ("format_map", "{x:.{y}}", []),
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
        ("join", MANY, []),
        ("join", ", ", [MANY]),
        ("join", MANY, [", ", "attribute"]),
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


def test_results_that_are_too_long() -> None:
    for value in ("a" * (MAX_CHARACTERS + 1), 1 << (1 << 16)):
        with pytest.raises(TemplateLimitError):
            check_result(value)


@pytest.mark.parametrize("value", ["a", [1], {"a": 1}, 5, 2.5, None, iter(())])
def test_results_that_are_fine(value: Any) -> None:
    assert check_result(value) is value
