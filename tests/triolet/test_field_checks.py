from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from triolet.errors import InvalidRequestError
from triolet.field_checks import as_tuple, check_bool, check_float, check_int, check_length


@pytest.mark.parametrize(
    "check",
    [
        lambda: check_float("x", float("nan"), 0, 1),
        lambda: check_float("x", 0, 0, 1, is_low_open=True),
        lambda: check_float("x", True, 0, 1),
        lambda: check_int("x", 1.0, 0, 1),
        lambda: check_int("x", 2, 0, 1),
        lambda: check_bool("x", 1),
        lambda: check_length("x", (1, 2), 1),
        lambda: as_tuple("x", "text"),
        lambda: as_tuple("x", 5),
    ],
)
def test_what_is_wrong_is_told_with_the_field(check: Callable[[], Any]) -> None:
    with pytest.raises(InvalidRequestError, match=r"^x: ") as caught:
        check()
    assert caught.value.param == "x"


def test_what_is_right_passes() -> None:
    check_float("x", 1, 0, 1)
    check_int("x", 0, 0, 1)
    check_bool("x", False)
    check_length("x", (1,), 1)
    assert as_tuple("x", [1, 2]) == (1, 2)
