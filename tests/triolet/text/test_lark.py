"""Grammars in Lark's notation and GBNF: what is rewritten, and what is refused before native code sees it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from triolet.text.lark import (
    MAX_CHARACTERS,
    MAX_INTERSECTIONS,
    MAX_NESTING,
    lark_from_gbnf,
    lark_string,
    prepare_lark,
)


def mark(schema: Any) -> str:
    return json.dumps({"seen": schema})


def test_every_schema_is_prepared() -> None:
    text = 'start: "a" %json {"type": "null"} | %json\n  [1]\n// %json {}\n"%json true"'
    assert prepare_lark(text, mark) == (
        'start: "a" %json {"seen": {"type": "null"}} | %json {"seen": [1]}\n// %json {"seen": {}}\n'
        '"%json {"seen": true}"'
    )


def test_a_grammar_without_schemas_is_left_as_it_is() -> None:
    text = 'start: a ("b" | /c/)*\n# json\na: "\\n"\n'
    assert prepare_lark(text, mark) == text


@pytest.mark.parametrize("schema", ["", " x", "{", "{'a': 1}", "[" * 100_000])
def test_what_is_no_schema_after_the_word_is_refused(schema: str) -> None:
    with pytest.raises(ValueError, match="%json: a JSON schema must follow"):
        prepare_lark(f"start: %json{schema}", mark)


@pytest.mark.parametrize("attribute", ["stop", "temperature", "max_tokens"])
def test_rule_attributes_that_would_be_passed_over_are_refused(attribute: str) -> None:
    with pytest.raises(ValueError, match=f"'{attribute}' cannot be enforced"):
        prepare_lark(f"start: a\na[lazy, {attribute} = 3]: /.*/", mark)


def test_depth_is_bounded_by_the_number_of_rules_and_brackets() -> None:
    rules = "\n".join(f"r{i}: r{i + 1}" for i in range(MAX_NESTING - 1))
    prepare_lark(f"start: r0\n{rules}", mark)
    for text in (
        f"start: r0\n{rules}\nx: y",
        "start: " + "(" * MAX_NESTING,
        "start: a\na: " + "~" * MAX_NESTING,
    ):
        with pytest.raises(ValueError, match=r"80\d rules and brackets"):
            prepare_lark(text, mark)


def test_brackets_of_schemas_have_their_own_limit() -> None:
    prepare_lark("start: %json " + json.dumps([[]] * 1000), mark)


def test_intersections_and_length_are_bounded() -> None:
    with pytest.raises(ValueError, match="operator & occurs more than 8 times"):
        prepare_lark("start: A\nA: " + " & ".join(["/a/"] * (MAX_INTERSECTIONS + 2)), mark)
    with pytest.raises(ValueError, match="characters, at most"):
        prepare_lark("start: " + "a" * MAX_CHARACTERS, mark)


def test_gbnf_becomes_lark() -> None:
    lark = lark_from_gbnf(
        'root ::= greeting " " name\ngreeting ::= "Hi" | "Bye"\nname ::= [A-Z] [a-z]+ # a name\n'
    )
    assert lark is not None
    assert "start:" in lark
    assert lark_from_gbnf('start: "a"') is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('root ::= "a" b', "Rule 'b' not found"),
        ('rule ::= "a"', "No 'root' rule"),
        ('root ::= "a', "Unexpected end"),
        ("root ::= " + "(" * 20_000, "nested too deeply"),
        ("root ::= " + "a " * MAX_CHARACTERS, "at most 32768 characters"),
        ("\n".join(f'r{i} ::= "a"' for i in range(501)), "500 rules"),
    ],
)
def test_wrong_gbnf_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        lark_from_gbnf(text)


def test_a_literal_is_ascii() -> None:
    assert lark_string('a"\\\n\x7fé') == r'"a\"\\\n\u007f\u00e9"'
