"""Options are declared once; what is wrong with a value names the field and the flag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from triolet.errors import UsageError
from triolet.option_fields import (
    check_at_least,
    check_names,
    check_not_negative,
    check_types,
    choices_of,
    flag_of,
    option,
)


@dataclass(frozen=True, kw_only=True)
class Options:
    size: int | None = option(1, "Size.", group="x")
    kind: Literal["a", "b"] = option("a", "Kind.", group="x")
    seconds: float = option(1.0, "Seconds.", group="x")


def test_a_field_carries_what_is_said_of_it() -> None:
    assert Options.__dataclass_fields__["size"].metadata["help"] == "Size."
    assert flag_of("max_num_seqs") == "--max-num-seqs"
    assert choices_of(Options) == {"kind": ("a", "b")}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": "1"}, r"size \(--size\) must be an integer or None, got '1'"),
        ({"kind": "c"}, r"kind \(--kind\) must be one of a, b, got 'c'"),
        ({"seconds": True}, "must be a number, got True"),
    ],
)
def test_types(options: dict[str, object], words: str) -> None:
    check_types(Options())
    with pytest.raises(UsageError, match=words):
        check_types(Options(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "remedy"), [("secconds", r"did you mean seconds\?"), ("colour", "remove it")]
)
def test_names(name: str, remedy: str) -> None:
    check_names(Options, ["size", "kind"])
    with pytest.raises(UsageError, match=f"{name}: there is no such option here; {remedy}") as caught:
        check_names(Options, ["size", name])
    assert caught.value.param == name


def test_ranges() -> None:
    check_at_least(Options(size=None), 1, ["size"])
    with pytest.raises(UsageError, match="must be 1 or more, got 0"):
        check_at_least(Options(size=0), 1, ["size"])
    check_not_negative(Options(seconds=0.0), ["seconds"])
    for seconds in (-1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="must be 0 or more"):
            check_not_negative(Options(seconds=seconds), ["seconds"])
