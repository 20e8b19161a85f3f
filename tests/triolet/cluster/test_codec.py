"""Dataclasses as arrays and back, type for type."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import pytest

from triolet.cluster.codec import from_plain, to_plain
from triolet.cluster.frames import WireError
from triolet.cluster.packing import pack, unpack
from triolet.statistics import CoreStatistics, Histogram, IterationStatistics


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    number: int = 3


@dataclass
class Everything:
    text: str
    data: bytes = b""
    is_set: bool = False
    ratio: float = 1.5
    anything: Any = None
    either: int | str | None = None
    choice: Literal["a", 2] = "a"
    colour: Colour | None = None
    inner: Inner = field(default_factory=Inner)
    inners: list[Inner] = field(default_factory=list)
    pair: tuple[int, str] | None = None
    numbers: tuple[int, ...] = ()
    ratios: list[float] = field(default_factory=list)
    names: frozenset[str] = frozenset()
    counts: dict[str, int] = field(default_factory=dict)


FULL = Everything(
    text="é", data=b"\0", is_set=True, ratio=0.25, anything=(1, "a", {"b": (None, 2.5)}), either="x",
    choice=2, colour=Colour.RED, inner=Inner(5), inners=[Inner(), Inner(7)], pair=(1, "a"),
    numbers=tuple(range(30)), ratios=[float("inf")] * 20, names=frozenset({"p", "q"}), counts={"a": 1},
)  # fmt: skip


@pytest.mark.parametrize("value", [Everything("only this"), FULL])
def test_everything_comes_back(value: Everything) -> None:
    assert from_plain(Everything, unpack(pack(to_plain(value)))) == value


def test_trailing_defaults_are_left_out() -> None:
    assert to_plain(Everything("only this")) == ("only this",)
    assert to_plain(Everything("text", is_set=True)) == ("text", b"", True)


def test_statistics_come_back() -> None:
    histogram = Histogram()
    histogram.observe(0.3)
    iteration = IterationStatistics(
        step_id=1, num_requests=2, num_prompt_tokens=3, num_generated_tokens=4, num_failed=0
    )
    statistics = CoreStatistics(last_iteration=iteration, queue_time=histogram)
    assert from_plain(CoreStatistics, unpack(pack(to_plain(statistics)))) == statistics


def test_a_histogram_that_does_not_add_up_is_refused() -> None:
    with pytest.raises(WireError, match="Histogram: 2 bounds need one more count, not 2"):
        from_plain(Histogram, ((1.0, 2.0), (1, 2)))


WRONG: dict[str, Any] = {
    "text": 5, "data": "x", "is_set": 1, "ratio": "x", "anything": (((((((((1,),),),),),),),),),
    "either": 1.5,    "choice": "b", "colour": "blue", "inner": 3, "inners": ((1, 2),), "pair": (1, "a", 2),
    "numbers": (1, True),    "ratios": b"1234567", "names": ("a", 1), "counts": {"a": "b"},
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_value_of_another_type_is_refused_and_named(name: str) -> None:
    values = {**dict(zip(WRONG, to_plain(FULL), strict=True)), name: WRONG[name]}
    with pytest.raises(WireError, match=f"Everything.{name}|Inner|nested"):
        from_plain(Everything, tuple(values.values()))


def test_whole_numbers_do_for_floats() -> None:
    assert from_plain(Everything, ("a", b"", False, 2)).ratio == 2.0


@pytest.mark.parametrize("value", [{1}, 2**70, object()])
def test_what_has_no_place_in_msgpack_cannot_be_sent(value: object) -> None:
    with pytest.raises(WireError, match="cannot be sent"):
        pack(value)


def test_a_sequence_that_is_too_long_cannot_be_sent() -> None:
    with pytest.raises(WireError, match="a sequence of 5000, at most 4096"):
        to_plain(Everything("a", inners=[Inner()] * 5000))
    with pytest.raises(WireError, match="cannot be sent"):
        to_plain(Everything("a", numbers=(2**64,) * 20))


def test_what_a_class_refuses_is_refused() -> None:
    @dataclass
    class Even:
        number: int

        def __post_init__(self) -> None:
            if self.number % 2:
                raise ValueError(f"{self.number} is odd")

    with pytest.raises(WireError, match="Even: 3 is odd"):
        from_plain(Even, (3,))
