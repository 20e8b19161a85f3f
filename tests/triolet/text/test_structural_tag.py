"""Structural tags: the notation, and what the grammar lets through."""

from __future__ import annotations

from typing import Any

import pytest
from tests.triolet.text.drive import Driver

from triolet.errors import InvalidRequestError
from triolet.sampling_params import StructuredOutputs
from triolet.text.grammar import GrammarCompiler

pytestmark = pytest.mark.model

POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
TAG = {
    "type": "structural_tag",
    "triggers": ["<f=", "<g>"],
    "structures": [
        {"begin": "<f=point>", "schema": POINT, "end": "</f>"},
        {"begin": "<f=list>", "schema": {"type": "array", "items": {"type": "null"}}, "end": "</f>"},
        {"begin": "<g>", "schema": {"type": "boolean"}, "end": ""},
    ],
}


def is_accepted(driver: Driver, compiler: GrammarCompiler, tag: Any, text: str) -> bool:
    driver.constraints.start(0, compiler.compile(StructuredOutputs(structural_tag=tag)), ())
    tokens = driver.tokenizer.encode(text, add_special_tokens=False)
    is_allowed = all(driver.constraints.accept(0, token_id) for token_id in tokens)
    return is_allowed and driver.constraints.accept(0, min(driver.tokenizer.eos_token_ids))


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("", True),
        ("free text, 1 < 2 <f", True),
        ('so <f=point>{"x": 1}</f> and more', True),
        ("<f=list>[null]</f><g>true then <g>false", True),
        ('<f=point>{"y": 1}</f>', False),
        ('<f=list>{"x": 1}</f>', False),
        ('<f=point>{"x": 1}</g>', False),
        ("<f=other>{}</f>", False),
        ("<f=", False),
        ("<f=list>[null]", False),
        ("<f=list>[                 null]</f>", False),
    ],
)
def test_a_trigger_begins_a_part_that_follows_its_schema(
    text: str, is_right: bool, smollm2_driver: Driver, smollm2_compiler: GrammarCompiler
) -> None:
    assert is_accepted(smollm2_driver, smollm2_compiler, TAG, text) == is_right


def test_special_tokens_can_be_trigger_and_end(
    smollm2_driver: Driver, smollm2_compiler: GrammarCompiler
) -> None:
    tag = {
        "triggers": ["<|im_start|>"],
        "structures": [{"begin": "<|im_start|>call", "schema": {"type": "null"}, "end": "<|endoftext|>"}],
    }
    assert is_accepted(smollm2_driver, smollm2_compiler, tag, "go <|im_start|>callnull<|endoftext|> on")
    assert not is_accepted(smollm2_driver, smollm2_compiler, tag, "go <|im_start|>call1")


STRUCTURE = {"begin": "<f>", "schema": {}, "end": ""}


@pytest.mark.parametrize(
    ("tag", "problem"),
    [
        ("{", "not JSON"),
        ([], "must be an object"),
        ({"format": {}}, "format: not known here"),
        ({"type": "other", "triggers": [], "structures": []}, "type: not known here"),
        ({"triggers": ["<f>"]}, "structures: missing"),
        ({"structures": [STRUCTURE]}, "triggers: missing"),
        (
            {"triggers": [], "structures": [STRUCTURE]},
            r"structures\[0\].begin: must begin with one of the triggers",
        ),
        ({"triggers": [], "structures": []}, "structures: at least one"),
        ({"triggers": [""], "structures": [STRUCTURE]}, r"triggers\[0\]: must be a non-empty string"),
        ({"triggers": ["<", "<f"], "structures": [STRUCTURE]}, r"triggers\[1\]: another trigger"),
        ({"triggers": ["<f", "<g"], "structures": [STRUCTURE]}, r"triggers\[1\]: no structure begins"),
        ({"triggers": ["<f"], "structures": [5]}, r"structures\[0\]: must be an object"),
        ({"triggers": ["<f"], "structures": [{"begin": "<f>"}]}, r"structures\[0\].end: missing"),
        ({"triggers": ["<f"], "structures": [STRUCTURE | {"x": 1}]}, r"structures\[0\].x: not known"),
        (
            {"triggers": ["<f"], "structures": [STRUCTURE | {"schema": {"not": {}}}]},
            "'not' cannot be enforced",
        ),
    ],
)
def test_what_is_wrong_is_named(tag: Any, problem: str, smollm2_compiler: GrammarCompiler) -> None:
    with pytest.raises(InvalidRequestError, match=problem) as caught:
        smollm2_compiler.compile(StructuredOutputs(structural_tag=tag))
    assert caught.value.param == "structured_outputs.structural_tag"
