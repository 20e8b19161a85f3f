"""Typed reading of fields: what is taken, and what each error names."""

from __future__ import annotations

from typing import Any

import pytest

from triolet.errors import ModelFileError
from triolet.models.config_fields import MAX_SIZE, Fields


def fields(**values: Any) -> Fields:
    return Fields(values, "config.json")


def test_values_and_defaults() -> None:
    given = fields(count=3, factor=2, ratio=0.5, is_on=False, name="x", nothing=None)
    assert given.integer("count") == 3
    assert given.integer("absent", 7) == 7
    assert given.integer("nothing", 7) == 7
    assert (given.number("factor"), type(given.number("factor"))) == (2.0, float)
    assert given.number("ratio", high=0.5) == 0.5
    assert given.flag("is_on") is False
    assert given.text("name") == "x"
    assert given.section("absent") is None


def test_the_prefix_is_looked_up_and_named() -> None:
    given = Fields({"llama.count": -1}, "m.gguf", "llama.")
    with pytest.raises(
        ModelFileError, match=r"^m\.gguf: llama\.count must be an integer in \[1, 1048576\], got -1"
    ):
        given.integer("count")


def test_a_section_is_named_by_its_path() -> None:
    section = fields(rope={"theta": "x"}).section("rope")
    assert section is not None
    with pytest.raises(ModelFileError, match=r"rope\.theta must be a number in \(0.0, 1e\+12\], got 'x'"):
        section.number("theta")
    with pytest.raises(ModelFileError, match="rope must be an object, got 3"):
        fields(rope=3).section("rope")


@pytest.mark.parametrize("value", [0, -1, MAX_SIZE + 1, 1.0, True, "1", [1], {}, float("nan"), 10**50])
def test_wrong_integers(value: Any) -> None:
    with pytest.raises(ModelFileError, match="count must be an integer"):
        fields(count=value).integer("count")


@pytest.mark.parametrize("value", [0.0, -1, 2e12, True, "1", [1], float("nan"), float("inf"), 10**400])
def test_wrong_numbers(value: Any) -> None:
    with pytest.raises(ModelFileError, match="factor must be a number"):
        fields(factor=value).number("factor")


def test_wrong_flags_and_texts_and_absent_fields() -> None:
    with pytest.raises(ModelFileError, match="is_on must be true or false, got 1"):
        fields(is_on=1).flag("is_on")
    with pytest.raises(ModelFileError, match="name must be a string, got an array of 2"):
        fields(name=[1, 2]).text("name")
    with pytest.raises(ModelFileError, match="name is missing"):
        fields(name=None).text("name")


def test_refused_features() -> None:
    given = fields(bias=False, factor=1, act="x" * 500, nothing=None)
    given.refuse_unless("bias", False)
    given.refuse_unless("factor", 1, 1.0)
    given.refuse_unless("nothing")
    with pytest.raises(
        ModelFileError, match="factor is 1, which is not supported; supported: True or absent"
    ):
        given.refuse_unless("factor", True)
    with pytest.raises(ModelFileError, match=r"act is 'x{50,60}\.\.\., which is not supported$"):
        given.refuse_unless("act")
