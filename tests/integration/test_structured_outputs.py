"""Structured outputs of the real model: valid whatever else is asked for, the same whatever the company."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.triolet.text.schemas import ARRAYS, COMBINATIONS, ENFORCED, OBJECTS, REFERENCES, SCALARS

from triolet import LLM, FinishReason, SamplingParams
from triolet.errors import InvalidRequestError
from triolet.sampling_params import StructuredOutputs

pytestmark = [pytest.mark.model, pytest.mark.slow]

OPTIONS: dict[str, Any] = {"block_size": 16, "num_threads": 1}
PROMPT = "A person, in JSON: "
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 16},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
DRAFT_7 = [schema for schema in ENFORCED if isinstance(schema, dict) and "$schema" in schema]
SCHEMAS = [s for s in [*SCALARS, *ARRAYS, *OBJECTS, *COMBINATIONS, *REFERENCES] if s not in DRAFT_7][::3]


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    with LLM(str(smollm2_path), max_model_len=512, **OPTIONS) as llm:
        yield llm


def constrained(json_schema: Any = PERSON, **fields: Any) -> SamplingParams:
    spec = StructuredOutputs(json=json_schema)
    chosen: dict[str, Any] = {"max_tokens": 160, "seed": 3, "structured_outputs": spec}
    return SamplingParams(**(chosen | fields))


def test_schemas_side_by_side(llm: LLM) -> None:
    """An output that ends is valid; one that is cut off began as a valid one does."""
    params = [constrained(schema, max_tokens=100) for schema in SCHEMAS]
    outputs = llm.generate([PROMPT] * len(params), params)
    num_ended = 0
    for schema, output in zip(SCHEMAS, outputs, strict=True):
        completion = output.outputs[0]
        assert completion.finish_reason in (FinishReason.STOP, FinishReason.LENGTH), output.error
        if completion.finish_reason is FinishReason.STOP:
            num_ended += 1
            jsonschema.Draft202012Validator(schema).validate(json.loads(completion.text))
    assert num_ended >= 0.8 * len(SCHEMAS)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": 2.0},
        {"temperature": 1.5, "top_k": 5, "top_p": 0.9, "min_p": 0.01},
        {"presence_penalty": 2.0, "frequency_penalty": 2.0, "repetition_penalty": 3.0},
        {"logit_bias": {2: 100.0}},
        {"bad_words": ["Ava", "John"]},
        {"ignore_eos": True},
        {"min_tokens": 5, "logprobs": 3},
        {"n": 3},
    ],
    ids=str,
)
def test_with_every_other_option(options: dict[str, Any], llm: LLM) -> None:
    (output,) = llm.generate([PROMPT], constrained(**options))
    for completion in output.outputs:
        assert completion.finish_reason is FinishReason.STOP, (completion, output.error)
        jsonschema.validate(json.loads(completion.text), PERSON)
    assert len(output.outputs) == options.get("n", 1)


def test_a_stop_string_ends_it_before_its_end(llm: LLM) -> None:
    (output,) = llm.generate([PROMPT], constrained(stop=['"age"']))
    assert output.outputs[0].stop_reason == '"age"'
    assert output.outputs[0].text.lstrip().startswith("{")


def test_each_kind(llm: LLM) -> None:
    specs = {
        r"yes|no": StructuredOutputs(choice=["yes", "no"]),
        r"[a-z]{3}-\d\d": StructuredOutputs(regex="[a-z]{3}-[0-9]{2}"),
        r"(ab)+!": StructuredOutputs(grammar='start: ("a" "b")+ "!"'),
        r"[01]{4}": StructuredOutputs(grammar='root ::= d d d d\nd ::= "0" | "1"'),
        r"(?s)\{.*\}|\{": StructuredOutputs(json_object=True),
    }
    params = [SamplingParams(structured_outputs=spec, max_tokens=60, seed=1) for spec in specs.values()]
    for pattern, output in zip(specs, llm.generate([PROMPT] * len(params), params), strict=True):
        completion = output.outputs[0]
        is_cut = completion.finish_reason is FinishReason.LENGTH
        assert is_cut or re.fullmatch(pattern, completion.text), completion


def test_company_does_not_matter(llm: LLM) -> None:
    """Alone, beside others, and beside others that are not constrained."""
    alone = llm.generate([PROMPT], constrained())[0].outputs[0].token_ids
    others = [constrained(seed=seed) for seed in range(2)] + [SamplingParams(max_tokens=20, seed=9)]
    outputs = llm.generate([PROMPT] * 4, [constrained(), *others])
    assert outputs[0].outputs[0].token_ids == alone


def test_preemption_does_not_matter(smollm2_path: Path, llm: LLM) -> None:
    """A sequence that loses its place in the cache takes its grammar up again where it was."""
    params = [constrained(seed=seed, max_tokens=60) for seed in range(4)]
    with LLM(str(smollm2_path), max_model_len=80, num_kv_blocks=6, **OPTIONS) as small:
        outputs = small.generate([PROMPT] * 4, params)
    roomy = llm.generate([PROMPT] * 4, params)
    assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in roomy]


def test_guessing_ahead_does_not_matter(smollm2_path: Path, llm: LLM) -> None:
    params = [constrained(temperature=0.0, seed=seed, max_tokens=60) for seed in range(3)]
    with LLM(str(smollm2_path), max_model_len=512, **OPTIONS, speculation="ngram") as guessing:
        guessed = guessing.generate([PROMPT] * 3, params)
    plain = llm.generate([PROMPT] * 3, params)
    assert [o.outputs[0].token_ids for o in guessed] == [o.outputs[0].token_ids for o in plain]


def test_what_cannot_be_compiled_is_refused_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="uniqueItems"):
        llm.generate([PROMPT], constrained({"uniqueItems": True}))


def test_a_contradiction_with_another_option_is_an_error_of_that_request(llm: LLM) -> None:
    outputs = llm.generate([PROMPT] * 2, [constrained(allowed_token_ids=[5]), constrained()])
    assert outputs[0].outputs[0].finish_reason is FinishReason.ERROR
    assert "structured_outputs" in (outputs[0].error or "")
    assert outputs[1].outputs[0].finish_reason is FinishReason.STOP
