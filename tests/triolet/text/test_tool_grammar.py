"""What a model may write of calls: the right ones, in every format, and random ones read back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from tests.triolet.text.drive import Driver
from tests.triolet.text.test_grammar import accepts

from triolet.sampling_params import StructuredOutputs
from triolet.text.grammar import GrammarCompiler, write_grammar
from triolet.text.parsed_text import fold_calls
from triolet.text.reasoning import REASONING_FORMATS
from triolet.text.tool_grammar import CallGrammar, arguments_schema
from triolet.text.tool_parsers.formats import TOOL_FORMATS
from triolet.text.tool_parsers.hermes import HERMES
from triolet.text.tool_parsers.tool_format import ToolFormat

pytestmark = pytest.mark.model

SCHEMAS = {
    "weather": arguments_schema(
        {
            "properties": {
                "city": {"enum": ["Oslo", 'R"'] },
                "days": {"type": "integer", "minimum": 0, "maximum": 99},
            },
            "required": ["city"],
        }
    ),
    "stop": arguments_schema(None),
}  # fmt: skip
OSLO = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
STOP = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'


def check(
    driver: Driver, compiler: GrammarCompiler, grammar: str, right: list[str], wrong: list[str]
) -> None:
    compiled = compiler.compile(StructuredOutputs(grammar=grammar))
    assert [text for text in right if not accepts(driver, compiled, text)] == []
    assert [text for text in wrong if accepts(driver, compiled, text)] == []


def test_some_call_is_forced(smollm2_driver: Driver, smollm2_compiler: GrammarCompiler) -> None:
    grammar = CallGrammar(form=HERMES, schemas=SCHEMAS)
    wrong = [
        "",
        "Hi",
        OSLO.replace("Oslo", "Rome"),
        OSLO.replace("weather", "other"),
        f"Hi {OSLO}",
        OSLO[:-1],
    ]
    check(smollm2_driver, smollm2_compiler, grammar.forced(), [OSLO, STOP, f"{OSLO}\n{STOP}"], wrong)
    one = CallGrammar(form=HERMES, schemas=SCHEMAS, is_parallel=False)
    check(smollm2_driver, smollm2_compiler, one.forced(), [OSLO], [f"{OSLO}\n{STOP}"])


def test_calls_or_words(smollm2_driver: Driver, smollm2_compiler: GrammarCompiler) -> None:
    grammar = CallGrammar(form=HERMES, schemas=SCHEMAS).free()
    right = ["Hi", "Hi\n" + OSLO, f"{OSLO}\n{STOP}", "a < b <tool"]
    check(smollm2_driver, smollm2_compiler, grammar, right, [OSLO.replace("Oslo", "Rome"), OSLO[:-4]])


def test_calls_or_an_answer_that_follows_a_schema(
    smollm2_driver: Driver, smollm2_compiler: GrammarCompiler
) -> None:
    grammar = CallGrammar(form=HERMES, schemas=SCHEMAS).free({"type": "array", "items": {"type": "integer"}})
    check(smollm2_driver, smollm2_compiler, grammar, ["[1, 2]", OSLO], ["Hi", "[true]", f"[1]{OSLO}"])


@pytest.mark.parametrize("is_open", [False, True])
def test_reasoning_comes_before(
    is_open: bool, smollm2_driver: Driver, smollm2_compiler: GrammarCompiler
) -> None:
    grammar = CallGrammar(
        form=HERMES, schemas=SCHEMAS, reasoning=REASONING_FORMATS[0], is_reasoning_open=is_open
    )
    thought = "Which <city>?\n</think>\n\n" + OSLO
    right, wrong = (thought, "<think>" + thought)[:: 1 if is_open else -1]
    check(smollm2_driver, smollm2_compiler, grammar.forced(), [right], [right[:-1], thought[:-9]])
    if not is_open:
        check(smollm2_driver, smollm2_compiler, grammar.forced(), [OSLO], [wrong])
    alone = replace(grammar, schemas={}).free({"type": "array"})
    right = ("" if is_open else "<think>") + "[true]</think>\n\n[1]"
    check(smollm2_driver, smollm2_compiler, alone, [right], [right + OSLO, right[:-3]])


@pytest.mark.parametrize("form", TOOL_FORMATS, ids=lambda form: form.name)
def test_what_is_forced_is_read_as_calls_with_valid_arguments(
    form: ToolFormat, smollm2_driver: Driver, smollm2_compiler: GrammarCompiler
) -> None:
    grammar = CallGrammar(form=form, schemas=SCHEMAS)
    compiled = smollm2_compiler.compile(StructuredOutputs(grammar=grammar.forced()))
    smollm2_compiler.compile(StructuredOutputs(grammar=grammar.free()))
    smollm2_compiler.compile(StructuredOutputs(grammar=grammar.free({"type": "object"})))
    for seed in range(3):
        parser = form.new_parser(SCHEMAS, lambda: "id")
        text = smollm2_driver.text(compiled, seed)
        parsed = parser.add(text) + parser.finish()
        assert parser.has_called, text
        assert parsed.content == ""
        for call in fold_calls(list(parsed.tool_calls)):
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name or ""])


@pytest.mark.parametrize("form", TOOL_FORMATS, ids=lambda form: form.name)
def test_many_tools_stay_within_the_limits_of_grammars(form: ToolFormat) -> None:
    schema = arguments_schema({"properties": {name: {"type": "string"} for name in "abcdef"}})
    names = [f"{number:x<64}" for number in range(128)]
    grammar = CallGrammar(form=form, schemas=dict.fromkeys(names, schema), reasoning=REASONING_FORMATS[0])
    for text in (grammar.forced(), grammar.free(), grammar.free({"type": "object"})):
        written = write_grammar(StructuredOutputs(grammar=text))
        assert all(name in written for name in names)


def test_many_tools_can_be_called(smollm2_driver: Driver, smollm2_compiler: GrammarCompiler) -> None:
    tools = {f"tool_{number}": arguments_schema(None) for number in range(128)}
    right = STOP.replace("stop", "tool_127")
    grammar = CallGrammar(form=HERMES, schemas=tools)
    check(smollm2_driver, smollm2_compiler, grammar.forced(), [right], [STOP])
    check(smollm2_driver, smollm2_compiler, grammar.free(), [right, "Hi"], [STOP])


def test_markers_that_are_tokens_are_written_as_such(
    smollm2_driver: Driver, smollm2_compiler: GrammarCompiler
) -> None:
    shape = replace(
        HERMES.shape, before="<|im_start|>{name}: ", after="<|endoftext|>", trigger="<|im_start|>"
    )
    form = replace(HERMES, shape=shape)
    grammar = CallGrammar(form=form, schemas=SCHEMAS, special_tokens={"<|im_start|>", "<|endoftext|>"})
    text = "<|im_start|>stop: {}<|endoftext|>"
    check(smollm2_driver, smollm2_compiler, grammar.forced(), [text], ["Hi"])
    check(smollm2_driver, smollm2_compiler, grammar.free(), ["Hi" + text, "Hi"], ["<|im_start|>stop"])


@pytest.mark.parametrize(
    ("parameters", "schema"),
    [
        (None, {"type": "object", "properties": {}, "additionalProperties": False}),
        ({"properties": {"a": {}}},
         {"type": "object", "properties": {"a": {}}, "additionalProperties": False}),
        ({"additionalProperties": True, "properties": {}},
         {"type": "object", "properties": {}, "additionalProperties": True}),
        ({"type": "object", "anyOf": [{}], "properties": {}},
         {"type": "object", "anyOf": [{}], "properties": {}}),
    ],
)  # fmt: skip
def test_the_schema_of_arguments(parameters: Any, schema: Any) -> None:
    assert arguments_schema(parameters) == schema
