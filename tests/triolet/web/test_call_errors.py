"""Errors of grammars that were made of tools, with llguidance's own words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from triolet.errors import InvalidRequestError
from triolet.models.source import local_files
from triolet.sampling_params import StructuredOutputs
from triolet.text.grammar import GrammarCompiler
from triolet.text.tokenizer import load_tokenizer
from triolet.text.tool_grammar import CallGrammar
from triolet.text.tool_parsers.formats import TOOL_FORMATS
from triolet.text.tool_parsers.hermes import HERMES
from triolet.text.tool_parsers.tool_format import ToolFormat
from triolet.web.call_errors import CallErrors

pytestmark = pytest.mark.model
GOOD: Any = {"type": "object"}
BAD: Any = {"type": "object", "properties": {"x": {"type": "string", "pattern": "(?=a)b"}}}
UNSATISFIABLE: Any = {
    "type": "object", "properties": {"x": {"type": "integer", "minimum": 5, "maximum": 3}}, "required": ["x"],
}  # fmt: skip


@pytest.fixture(scope="module")
def compiler(smollm2_path: Path) -> GrammarCompiler:
    tokenizer = load_tokenizer(local_files(smollm2_path))
    return GrammarCompiler(tokenizer, tokenizer.vocab_size)


def explained(compiler: GrammarCompiler, calls: CallGrammar, grammar: str) -> InvalidRequestError:
    fields = {rule: f"tools[{number}]" for number, rule in enumerate(calls.rules)} | {"answer": "format"}
    with pytest.raises(InvalidRequestError) as caught:
        compiler.compile(StructuredOutputs(grammar=grammar))
    return CallErrors(grammar, fields).explain(caught.value)


@pytest.mark.parametrize("form", TOOL_FORMATS, ids=lambda form: form.name)
def test_the_tool_is_named(form: ToolFormat, compiler: GrammarCompiler) -> None:
    calls = CallGrammar(form=form, schemas={"a": GOOD, "b": GOOD, "c": BAD})
    for grammar in (calls.forced(), calls.free(), calls.free(GOOD)):
        error = explained(compiler, calls, grammar)
        assert error.param == "tools[2]"
        assert error.message.startswith("tools[2]: invalid regular expression")
        assert "body_" not in error.message


def test_the_answer_is_named_and_what_it_means_is_said(compiler: GrammarCompiler) -> None:
    calls = CallGrammar(form=HERMES, schemas={"a": GOOD})
    assert explained(compiler, calls, calls.free(BAD)).param == "format"
    error = explained(compiler, CallGrammar(form=HERMES, schemas={"a": UNSATISFIABLE}), "start: x")
    assert error.message.startswith("tools: ")
