from __future__ import annotations

import os
import statistics

import pytest
from bench.report import busy_cores, machine, median_rows, percentile, print_table
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_percentiles_lie_between_the_extremes_and_meet_the_median(values: list[float]) -> None:
    assert percentile(values, 0) == min(values)
    assert percentile(values, 100) == max(values)
    assert percentile(values, 50) == pytest.approx(statistics.median(values))


def test_percentile_of_nothing() -> None:
    assert percentile([], 50) == 0.0


def test_rounds_are_merged_by_median() -> None:
    rows = [{"server": "a", "clients": 1, "speed": speed, "unit": "tok/s"} for speed in (1.0, 9.0, 2.0)]
    rows.append({"server": "b", "clients": 1, "speed": 5.0, "unit": "tok/s"})
    assert median_rows(rows, ["server", "clients"]) == [
        {"server": "a", "clients": 1, "speed": 2.0, "unit": "tok/s", "num_rounds": 3},
        {"server": "b", "clients": 1, "speed": 5.0, "unit": "tok/s", "num_rounds": 1},
    ]


def test_the_machine_is_described() -> None:
    assert {"processor", "cores", "memory", "commit", "date"} <= set(machine())


def test_busy_cores_are_counted() -> None:
    assert 0 <= busy_cores(0.05) <= 2 * (os.cpu_count() or 1)


def test_a_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([{"name": "x", "value": 1234.5}, {"name": "longer", "value": None}], ("name", "value"))
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["  name    value", "     x  1,234.5", "longer         "]
