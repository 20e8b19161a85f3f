"""The patterns of RFC 3339 formats against Python's own calendar."""

from __future__ import annotations

import datetime
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.text.json_formats import FORMAT_PATTERNS, SUPPORTED_FORMATS

FIRST = datetime.date(1000, 1, 1)


@given(st.dates(min_value=FIRST))
def test_each_date_matches(date: datetime.date) -> None:
    assert re.search(FORMAT_PATTERNS["date"], date.isoformat())


@given(st.integers(1000, 9999), st.integers(0, 13), st.integers(0, 32))
def test_what_matches_is_a_date(year: int, month: int, day: int) -> None:
    text = f"{year}-{month:02}-{day:02}"
    try:
        datetime.date.fromisoformat(text)
        is_date = True
    except ValueError:
        is_date = False
    assert bool(re.search(FORMAT_PATTERNS["date"], text)) == is_date


def test_leap_years() -> None:
    for year in range(1000, 10000):
        is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        assert bool(re.search(FORMAT_PATTERNS["date"], f"{year}-02-29")) == is_leap


@given(st.datetimes(min_value=datetime.datetime(1000, 1, 1), timezones=st.timezones()))
def test_each_moment_matches(moment: datetime.datetime) -> None:
    offset = moment.utcoffset()
    if offset is not None and offset.total_seconds() % 60 == 0:
        assert re.search(FORMAT_PATTERNS["date-time"], moment.isoformat())
        _, _, time = moment.isoformat().partition("T")
        assert re.search(FORMAT_PATTERNS["time"], time)


@pytest.mark.parametrize(
    "text", ["24:00:00Z", "10:60:00Z", "10:00:60Z", "10:00:00", "10:00:00+24:00", "10:00Z"]
)
def test_what_is_no_time(text: str) -> None:
    assert not re.search(FORMAT_PATTERNS["time"], text)


def test_each_pattern_belongs_to_a_supported_format() -> None:
    assert FORMAT_PATTERNS.keys() <= SUPPORTED_FORMATS
