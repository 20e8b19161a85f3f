"""Schemas of every feature: each output is valid, or the schema is refused by the keyword's name."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from tests.triolet.text.drive import Driver
from tests.triolet.text.schemas import DRAFT_7, ENFORCED, REFUSED

from triolet.errors import InvalidRequestError
from triolet.sampling_params import StructuredOutputs
from triolet.text.grammar import GrammarCompiler

NUM_OUTPUTS = 4


def validator_of(schema: Any) -> Any:
    is_draft_7 = isinstance(schema, dict) and schema.get("$schema") == DRAFT_7
    kind = jsonschema.Draft7Validator if is_draft_7 else jsonschema.Draft202012Validator
    kind.check_schema(schema)
    return kind(schema, format_checker=kind.FORMAT_CHECKER)


def test_there_are_enough_schemas() -> None:
    assert len(ENFORCED) >= 150
    assert len(REFUSED) >= 50


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("schema", ENFORCED, ids=lambda schema: json.dumps(schema)[:60])
def test_every_output_is_valid(
    schema: Any, smollm2_driver: Driver, smollm2_compiler: GrammarCompiler
) -> None:
    validator = validator_of(schema)
    grammar = smollm2_compiler.compile(StructuredOutputs(json=schema))
    for seed in range(NUM_OUTPUTS):
        text = smollm2_driver.text(grammar, seed)
        validator.validate(json.loads(text))


@pytest.mark.model
@pytest.mark.parametrize(("schema", "keyword"), REFUSED, ids=lambda value: json.dumps(value)[:60])
def test_what_cannot_be_enforced_is_refused_by_name(
    schema: Any, keyword: str, smollm2_compiler: GrammarCompiler
) -> None:
    with pytest.raises(InvalidRequestError, match=keyword) as caught:
        smollm2_compiler.compile(StructuredOutputs(json=schema))
    assert caught.value.param == "structured_outputs.json"
    assert caught.value.message.startswith("structured_outputs.json: ")
    assert len(caught.value.message) < 700
