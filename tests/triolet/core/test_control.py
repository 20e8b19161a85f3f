from __future__ import annotations

from typing import Any

import pytest

from triolet.core.control import SleepPart, check_level, check_mode, check_parts
from triolet.errors import InvalidRequestError

ALL: frozenset[SleepPart] = frozenset({"weights", "kv_cache", "scheduling"})


@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
def test_modes(mode: str) -> None:
    check_mode(mode)


@pytest.mark.parametrize("mode", ["", "ABORT", None, 1, ["abort"]])
def test_an_unknown_mode_is_told_the_choices(mode: Any) -> None:
    with pytest.raises(InvalidRequestError, match="mode: must be one of abort, wait, keep") as caught:
        check_mode(mode)
    assert caught.value.param == "mode"


@pytest.mark.parametrize("level", [0, 1, 2])
def test_levels(level: int) -> None:
    check_level(level)


@pytest.mark.parametrize("level", [-1, 3, None, "1", True, [1]])
def test_an_unknown_level_is_told_the_choices(level: Any) -> None:
    with pytest.raises(InvalidRequestError, match="level: must be one of 0, 1, 2"):
        check_level(level)


@pytest.mark.parametrize(
    ("tags", "asleep", "parts"),
    [
        (None, ALL, ALL),
        (None, frozenset(), frozenset()),
        (["weights"], ALL, {"weights"}),
        (("weights", "kv_cache"), ALL, {"weights", "kv_cache"}),
        (["weights", "kv_cache", "scheduling"], ALL, ALL),
        (["scheduling"], frozenset({"scheduling"}), {"scheduling"}),
        (["weights"], frozenset({"scheduling"}), frozenset()),
    ],
)
def test_parts(tags: Any, asleep: frozenset[SleepPart], parts: set[str]) -> None:
    assert check_parts(tags, asleep) == parts


@pytest.mark.parametrize("tags", [["weight"], "weights", 3, [["weights"]]])
def test_unknown_parts(tags: Any) -> None:
    with pytest.raises(InvalidRequestError, match="tags: must be"):
        check_parts(tags, ALL)


def test_scheduling_does_not_go_on_without_what_it_needs() -> None:
    with pytest.raises(InvalidRequestError, match="asleep: kv_cache, weights; wake them too"):
        check_parts(["scheduling"], ALL)
