"""One error out of groups."""

from __future__ import annotations

from triolet.core.errors import single_error


def test_the_one_error_in_nested_groups_of_one() -> None:
    error = ValueError("it")
    assert single_error(ExceptionGroup("outer", [ExceptionGroup("inner", [error])])) is error


def test_several_errors_stay_a_group() -> None:
    group = ExceptionGroup("inner", [ValueError("one"), ValueError("two")])
    assert single_error(ExceptionGroup("outer", [group])) is group
