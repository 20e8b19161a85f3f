"""From what the output must be to a grammar: each kind, what is refused, and hostile input."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.triolet.text.drive import Driver

from triolet.errors import InvalidRequestError
from triolet.sampling_params import StructuredOutputs
from triolet.text import grammar as grammar_module
from triolet.text.grammar import GrammarCompiler, write_grammar
from triolet.text.grammar_tokenizer import grammar_tokenizer
from triolet.text.tokenizer import Tokenizer

pytestmark = pytest.mark.model

GBNF = 'root ::= greeting " " name\ngreeting ::= "Hi" | "Bye"\nname ::= [A-Z] [a-z]{1,3}\n'


def accepts(driver: Driver, grammar: str, text: str) -> bool:
    driver.constraints.start(0, grammar, ())
    tokens = driver.tokenizer.encode(text, add_special_tokens=False)
    return all(driver.constraints.accept(0, token_id) for token_id in tokens) and driver.constraints.accept(
        0, min(driver.tokenizer.eos_token_ids)
    )


@pytest.mark.parametrize(
    ("spec", "right", "wrong"),
    [
        ({"json": {"type": "integer"}}, ["1", "-20"], ["1.5", " 1", "x"]),
        ({"json": '{"type": "null"}'}, ["null"], ["1"]),
        ({"json": True}, ["[1]", "null"], ["x"]),
        ({"json_object": True}, ["{}", '{"a": [1, "b"]}'], ["[]", "1", "{"]),
        ({"regex": "[ab]+c?"}, ["a", "abbac"], ["", "c", "ac "]),
        ({"regex": "^\\d{2}/é$"}, ["12/é"], ["1/é", "12/é\n"]),
        ({"choice": ["a", "ab", 'q"\\\n', "é😀"]}, ["a", "ab", 'q"\\\n', "é😀"], ["b", "aba", "q"]),
        ({"grammar": 'start: x+ "!"\nx: "a" | "b"'}, ["a!", "bab!"], ["!", "a"]),
        ({"grammar": GBNF}, ["Hi Bob", "Bye Al"], ["Hi bob", "Hi Robert", "Hi"]),
        ({"grammar": 'start: "<" %json {"type": "null"} ">"'}, ["<null>"], ["<1>", "<  null>"]),
    ],
)
def test_each_kind(
    spec: dict[str, Any],
    right: list[str],
    wrong: list[str],
    smollm2_driver: Driver,
    smollm2_compiler: GrammarCompiler,
) -> None:
    grammar = smollm2_compiler.compile(StructuredOutputs(**spec))
    assert [text for text in right if not accepts(smollm2_driver, grammar, text)] == []
    assert [text for text in wrong if accepts(smollm2_driver, grammar, text)] == []


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ('{"a":1}', True),
        ('{ "a": 1 }', True),
        ('{\n  "a": 1\n}', True),
        ('{\n\t"a": 1\n}', True),
        ('{  "a": 1}', False),
        ('{\n\n"a": 1}', False),
        ("{\n" + " " * 17 + '"a": 1}', False),
        ('{"a": 1} ', False),
    ],
)
def test_whitespace_is_bounded(
    text: str, is_right: bool, smollm2_driver: Driver, smollm2_compiler: GrammarCompiler
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for spec in (
        StructuredOutputs(json=schema),
        StructuredOutputs(json_object=True),
        StructuredOutputs(grammar=f"start: %json {json.dumps(schema)}"),
    ):
        assert accepts(smollm2_driver, smollm2_compiler.compile(spec), text) == is_right


def test_a_key_is_spelled_in_one_way(smollm2_driver: Driver, smollm2_compiler: GrammarCompiler) -> None:
    """Or the key ``a`` could have a value that its schema does not allow."""
    schema = {
        "properties": {"a": {"type": "integer"}},
        "additionalProperties": {"type": "string"},
        "type": "object",
    }
    grammar = smollm2_compiler.compile(StructuredOutputs(json=schema))
    assert accepts(smollm2_driver, grammar, '{"b": "x"}')
    assert not accepts(smollm2_driver, grammar, '{"\\u0061": "x"}')


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"regex": "(a"}, "regex: invalid regular expression: unclosed group$"),
        ({"regex": "(?=a)"}, "look-around"),
        ({"regex": "a" * 5000}, "at most 4096"),
        ({"grammar": "start: missing"}, r'grammar: at 1\(8\): unknown name: "missing"$'),
        ({"grammar": 'start: a\na: "x" | $\n'}, r"grammar: 2\(10\): lexer error$"),
        ({"grammar": "start: /(a/"}, r"at 1\(8\): invalid regex .* error: unclosed group$"),
        ({"json": {"properties": {"a": {"$ref": "#/$defs/b"}}}}, r"json: at #/properties/a: \$ref: there is"),
        ({"grammar": "start: a\na: b\nb: a"}, "matches no text at all"),
        ({"grammar": 'start: <|nope|> "a"'}, "unknown special token"),
        ({"grammar": "nonsense"}, r"1\(9\): Expected token ':', found '\\n' \(at .*\)$"),
        ({"grammar": 'root ::= "a" b'}, "Rule 'b' not found"),
        ({"grammar": 'start: %json {"not": {}}'}, "'not' cannot be enforced"),
        ({"regex": 5}, "must be a string"),
        ({"grammar": ["a"]}, "must be a string"),
        ({"json": 5}, "a schema is an object or a boolean"),
        ({"json": {"const": float("nan")}}, "must be JSON"),
        ({"json": {"const": object()}}, "must be JSON"),
        ({"json": {"enum": ["x" * 200_000]}}, "at most 131072"),
    ],
)
def test_what_cannot_be_compiled_is_refused(
    spec: dict[str, Any], problem: str, smollm2_compiler: GrammarCompiler
) -> None:
    with pytest.raises(InvalidRequestError, match=problem) as caught:
        smollm2_compiler.compile(StructuredOutputs(**spec))
    assert caught.value.param == f"structured_outputs.{next(iter(spec))}"


def test_the_smallest_wrong_part_is_named(smollm2_compiler: GrammarCompiler) -> None:
    wrong = {"allOf": [{"type": "string"}, {"type": "integer"}]}
    schema = {
        "type": "object",
        "properties": {"a": {}, "b": {"type": "array", "items": wrong, "minItems": 1}},
        "required": ["b"],
    }
    with pytest.raises(InvalidRequestError, match=r"at #/properties/b/items \(allOf\): Unsatisfiable"):
        smollm2_compiler.compile(StructuredOutputs(json=schema))


def chain_of_terminals(length: int) -> str:
    rules = "\n".join(f"R{i}: R{i + 1} R{i + 1}" for i in range(length))
    return f'start: R0\n{rules}\nR{length}: "a"'


HOSTILE: dict[str, dict[str, Any]] = {
    "nesting": {"json": '{"items":' * 10_000 + "{}" + "}" * 10_000},
    "references": {
        "json": {"$ref": "#/$defs/0", "$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(3000)}}
    },
    "patterns": {"json": {"allOf": [{"pattern": f"a{i}"} for i in range(60)]}},
    "properties": {"json": {"properties": {f"p{i}": {} for i in range(3000)}}},
    "required": {"json": {"allOf": [{"properties": {f"p{i}": {}}} for i in range(1500)]}},
    "alternatives": {"json": {"anyOf": [{"properties": {f"k{i}": {"type": "null"}}} for i in range(2500)]}},
    "brackets": {"regex": "(" * 2000 + "a" + ")" * 2000},
    "repetitions": {"regex": "((((a{999}){999}){999}){999}){999}"},
    "quadratic": {"regex": "a?" * 2000},
    "terminals": {"grammar": chain_of_terminals(150)},
    "chain": {"grammar": "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(5000))},
    "gbnf": {"grammar": "root ::= " + "(" * 10_000},
    "garbage": {"grammar": "\x00" * 30_000},
    "items": {
        "grammar": "start: r0\n" + "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(40)) + '\nr40: "a"'
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_input_ends_by_itself(
    name: str, smollm2_compiler: GrammarCompiler, smollm2_driver: Driver
) -> None:
    """In a thread with an ordinary stack: as an error, or as a grammar whose masks end soon."""
    outcome: list[float] = []

    def compile_it() -> None:
        began = time.thread_time()
        try:
            grammar = smollm2_compiler.compile(StructuredOutputs(**HOSTILE[name]))
            smollm2_driver.constraints.start(0, grammar, ())
            smollm2_driver.mask()
        except InvalidRequestError:
            pass
        outcome.append(time.thread_time() - began)

    thread = threading.Thread(target=compile_it)
    thread.start()
    thread.join()
    assert outcome[0] < 5


@given(st.text(max_size=60), st.sampled_from(["json", "regex", "grammar", "structural_tag"]))
@settings(max_examples=150)
def test_any_text_is_compiled_or_refused(text: str, field: str) -> None:
    fields: dict[str, Any] = {field: text}
    with contextlib.suppress(InvalidRequestError):
        write_grammar(StructuredOutputs(**fields))


def test_it_remembers(smollm2: Tokenizer) -> None:
    compiler = GrammarCompiler(smollm2, smollm2.vocab_size)
    spec = StructuredOutputs(json={"type": "object", "properties": {"a": {}, "b": {}}})
    other = StructuredOutputs(json={"type": "object", "properties": {"b": {}, "a": {}}})
    assert compiler.find(spec) is None
    grammar = compiler.compile(spec)
    assert compiler.find(spec) is grammar
    assert compiler.compile(spec) is grammar
    assert compiler.find(other) is None  # the order of the properties is that of the output


def test_warmed_up_it_makes_nothing_for_the_first_grammar(
    smollm2: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def make(tokenizer: Tokenizer, vocab_size: int) -> Any:
        made.append(vocab_size)
        return grammar_tokenizer(tokenizer, vocab_size)

    monkeypatch.setattr(grammar_module, "grammar_tokenizer", make)
    compiler = GrammarCompiler(smollm2, smollm2.vocab_size)
    compiler.warm_up()
    assert made == [smollm2.vocab_size]
    compiler.compile(StructuredOutputs(regex="a+"))
    compiler.warm_up()
    assert len(made) == 1


def test_what_cannot_be_warmed_up_is_told_by_the_first_grammar(
    smollm2: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(tokenizer: Tokenizer, vocab_size: int) -> Any:
        raise ValueError("no such vocabulary")

    monkeypatch.setattr(grammar_module, "grammar_tokenizer", fail)
    compiler = GrammarCompiler(smollm2, smollm2.vocab_size)
    compiler.warm_up()
    with pytest.raises(ValueError, match="no such vocabulary"):
        compiler.compile(StructuredOutputs(regex="a+"))


def test_a_model_without_an_end_cannot_be_constrained(byte_level: Tokenizer) -> None:
    tokenizer = byte_level
    if tokenizer.eos_token_ids:
        pytest.skip("it has one")
    with pytest.raises(InvalidRequestError, match="no end-of-sequence token"):
        GrammarCompiler(tokenizer, tokenizer.vocab_size).compile(StructuredOutputs(regex="a"))
