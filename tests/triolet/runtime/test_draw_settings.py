"""Settings of every position of every row, in order."""

from __future__ import annotations

from dataclasses import astuple, replace

import numpy as np
from tests.triolet.runtime.rows import make_row

from triolet.runtime.draw_settings import StepSettings, draw_settings, held_settings, settings_at
from triolet.runtime.random import uniforms


def test_each_position_has_its_own_number_and_its_rows_settings() -> None:
    rows = [
        make_row((1, 2, 3), start=4, seed=-9, temperature=0.5, top_k=3),
        make_row((1, 2, 3, 4), slot=1, start=10, seed=7, num_draft_tokens=2, top_p=0.25, min_p=0.125),
        make_row((), slot=2, start=0, seed=-9),
    ]
    settings = draw_settings(rows)
    assert settings.temperatures.tolist() == [0.5, 0, 0, 0, 0]
    assert settings.top_k.tolist() == [3, 0, 0, 0, 0]
    assert settings.top_p.tolist() == [1, 0.25, 0.25, 0.25, 1]
    assert settings.min_p.tolist() == [0, 0.125, 0.125, 0.125, 0]
    expected = uniforms(np.array([-9, 7, 7, 7, -9]), np.array([7, 12, 13, 14, 1]))[:, 0]
    assert settings.uniforms.tolist() == expected.tolist()


def test_numbers_are_doubles_whatever_requests_hold() -> None:
    settings = draw_settings([make_row(temperature=1, top_p=1, min_p=0)])
    dtypes = [settings.temperatures.dtype, settings.top_p.dtype, settings.min_p.dtype]
    assert dtypes == [np.float64] * 3


def test_no_numbers_are_made_where_none_is_used() -> None:
    rows = [make_row(seed=1), make_row(slot=1, seed=2)]
    assert draw_settings(rows).uniforms.tolist() == [0, 0]
    assert draw_settings([*rows, make_row(slot=2, seed=3, temperature=0.5)]).uniforms.all()


def test_each_draw_at_a_place_has_a_number_of_its_own() -> None:
    rows = [
        make_row((1, 2, 3), start=4, seed=-9, temperature=0.5, top_k=3),
        make_row((1, 2, 3, 4), slot=1, start=10, seed=7, num_draft_tokens=2, top_p=0.25, min_p=0.125),
    ]
    held = held_settings(rows)
    expected = uniforms(np.array([-9, 7, 7, 7]), np.array([7, 12, 13, 14]), 5)
    assert held.first.uniforms.tolist() == draw_settings(rows).uniforms.tolist() == expected[:, 0].tolist()
    assert held.masked.uniforms.tolist() == expected[:, 1].tolist()
    places = np.array([2, 0])
    assert held.further(places, 3).tolist() == expected[places, 2:].tolist()
    assert held.further(np.array([1, 2]), 3).tolist() == [[0, 0, 0]] * 2
    for settings in (held.first, held.masked):
        assert settings.uniforms.flags.c_contiguous
        assert settings.temperatures.tolist() == [0.5, 0, 0, 0]


def test_some_of_the_settings() -> None:
    rows = [
        make_row((1, 2, 3), start=4, seed=-9, temperature=0.5, top_k=3),
        make_row((1, 2, 3, 4), slot=1, start=10, seed=7, num_draft_tokens=2, top_p=0.25, min_p=0.125),
    ]
    whole = draw_settings(rows)
    settings = settings_at(whole, np.array([3, 0]))
    assert settings.temperatures.tolist() == [0, 0.5]
    assert settings.top_k.tolist() == [0, 3]
    assert settings.top_p.tolist() == [0.25, 1]
    assert settings.min_p.tolist() == [0.125, 0]
    assert settings.uniforms.tolist() == whole.uniforms[[3, 0]].tolist()


def test_settings_of_one_step_after_the_other_are_those_of_each() -> None:
    greedy, random = make_row(seed=1, top_k=3), make_row(slot=1, seed=2, temperature=0.5)
    steps = [[greedy], [greedy], [random], [random, greedy], [greedy, random], [], [random]]
    settings = StepSettings()
    for number, rows in enumerate(step for step in steps for _ in range(2)):
        moved = [replace(row, start=row.start + number) for row in rows]
        kept, fresh = settings.of(moved), draw_settings(moved)
        for ours, theirs in zip(astuple(kept), astuple(fresh), strict=True):
            assert ours.dtype == theirs.dtype
            assert ours.tolist() == theirs.tolist()


def test_settings_that_stay_the_same_are_kept() -> None:
    settings, row = StepSettings(), make_row(seed=1)
    assert settings.of([row]) is settings.of([replace(row, start=row.start + 1)])
