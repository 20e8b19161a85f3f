from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.statistics import SECONDS_BUCKETS, Histogram, SchedulerStatistics


def test_bounds_rise() -> None:
    assert list(SECONDS_BUCKETS) == sorted(set(SECONDS_BUCKETS))


@pytest.mark.parametrize(
    ("value", "bucket"), [(-1.0, 0), (0.0, 0), (1.0, 0), (1.5, 1), (2.0, 1), (2.1, 2), (1e9, 2)]
)
def test_upper_bounds_are_inclusive_and_the_last_bucket_is_open(value: float, bucket: int) -> None:
    histogram = Histogram(bounds=(1.0, 2.0))
    histogram.observe(value)
    assert histogram.counts == [int(i == bucket) for i in range(3)]
    assert histogram.total == value


@given(st.lists(st.floats(min_value=0, max_value=1e6)))
def test_every_value_is_counted_once(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    assert sum(histogram.counts) == len(values)
    assert histogram.total == pytest.approx(sum(values))


def test_a_copy_goes_its_own_way() -> None:
    histogram = Histogram()
    histogram.observe(1.0)
    copy = histogram.copy()
    histogram.observe(1.0)
    assert (sum(copy.counts), copy.total) == (1, 1.0)
    assert Histogram().counts != histogram.counts


@pytest.mark.parametrize(
    ("num_blocks", "num_free", "usage"), [(0, 0, 0.0), (8, 8, 0.0), (8, 6, 0.25), (8, 0, 1.0)]
)
def test_kv_usage(num_blocks: int, num_free: int, usage: float) -> None:
    assert SchedulerStatistics(num_blocks=num_blocks, num_free_blocks=num_free).kv_usage == usage
