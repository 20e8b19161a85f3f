"""What the output must be → a grammar that llguidance compiles, tried out, or the reason why there is none.

It fails closed: a part that would not be enforced is an error that names the field, the place and the
keyword, never a looser grammar. Whitespace between the tokens of JSON is bounded.

Pure and synchronous; compiling may take seconds, so callers on an event loop use a thread. This module knows
neither models nor sampling.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection
from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import llguidance

from triolet.errors import InvalidRequestError
from triolet.sampling_params import StructuredOutputs
from triolet.text.constraints import first_line, new_matcher
from triolet.text.grammar_cache import LruCache
from triolet.text.grammar_tokenizer import grammar_tokenizer
from triolet.text.json_schema import MAX_REGEX, failing_part, meaning_of, parse_schema, prepare_schema
from triolet.text.lark import lark_from_gbnf, lark_string, prepare_lark
from triolet.text.structural_tag import structural_tag_grammar
from triolet.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

__all__ = ["GrammarCompiler", "write_grammar"]

WHITESPACE = r"(?:\x20|\x0A(?:\x20{0,16}|\x09{0,8}))"
"""Between two tokens of JSON: nothing, a space, or a new line and its indentation. A model that may write
white space without end does."""

JSON_OPTIONS: JsonCompileOptions = {
    "whitespace_pattern": WHITESPACE,
    # Without \u a key cannot be spelled in two ways, of which only one is held to the key's schema.
    "json_allowed_escapes": 'nrbtf\\"',
}
MAX_CHARACTERS = 131_072
MAX_CACHED_GRAMMARS = 256
MAX_CACHED_CHARACTERS = 8 * 2**20


class GrammarCompiler:
    """Compiles for one tokenizer, one grammar at a time, and remembers the latest ones. Thread-safe.

    ``vocab_size`` is the model's. Nothing is made before :meth:`warm_up` or the first grammar.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._grammar_tokenizer: llguidance.LLTokenizer | None = None
        self._special_tokens = frozenset(
            name for i in tokenizer.special_token_ids if (name := tokenizer.id_to_token(i))
        )
        self._known = LruCache[str](max_entries=MAX_CACHED_GRAMMARS, max_characters=MAX_CACHED_CHARACTERS)
        self._compiling = threading.Lock()

    def warm_up(self) -> None:
        """Make what the first grammar would have to wait for. What is wrong with it, that grammar tells."""
        with suppress(Exception), self._compiling:
            self._tokenizer_of_grammars()

    def find(self, spec: StructuredOutputs) -> str | None:
        """The grammar of ``spec``, if it was compiled not long ago. Raises InvalidRequestError."""
        return self._known.get(_key(spec))

    def compile(self, spec: StructuredOutputs) -> str:
        """The grammar of ``spec``, for ``Request.grammar``.

        Raises InvalidRequestError whose ``param`` is ``structured_outputs.`` and the field.
        """
        key = _key(spec)
        if not self._tokenizer.eos_token_ids:
            raise _refusal(spec, "the model has no end-of-sequence token, without which no output could end")
        with self._compiling:
            grammar = self._known.get(key)
            if grammar is None:
                grammar = write_grammar(spec, self._special_tokens)
                self._try_out(spec, grammar)
                self._known.put(key, grammar)
        return grammar

    def _try_out(self, spec: StructuredOutputs, grammar: str) -> None:
        """Compile it, ask for the tokens it may begin with, and refuse what is wrong with it."""
        tokenizer = self._tokenizer_of_grammars()
        error = _compile_error(grammar, tokenizer)
        if error is None:
            return
        if spec.json is not None:
            schema = prepare_schema(parse_schema(spec.json))
            error = failing_part(schema, lambda part: _compile_error(_json_grammar(part), tokenizer)) or error
        if spec.regex is not None:  # whose place in the grammar made for it tells nobody anything
            error = error.partition("(in regex): ")[2] or error
        raise _refusal(spec, meaning_of(error))

    def _tokenizer_of_grammars(self) -> llguidance.LLTokenizer:
        if self._grammar_tokenizer is None:
            self._grammar_tokenizer = grammar_tokenizer(self._tokenizer, self._vocab_size)
        return self._grammar_tokenizer


def write_grammar(spec: StructuredOutputs, special_tokens: Collection[str] = ()) -> str:
    """``spec`` in llguidance's own notation, not compiled yet. Raises InvalidRequestError as ``compile``."""
    matcher = llguidance.LLMatcher
    try:
        if spec.json is not None:
            return _json_grammar(prepare_schema(parse_schema(spec.json)))
        if spec.json_object:
            return _json_grammar({"type": "object"})
        if spec.regex is not None:
            if len(spec.regex) > MAX_REGEX:
                raise ValueError(f"{len(spec.regex)} characters, at most {MAX_REGEX}; make it shorter")
            return matcher.grammar_from_regex(spec.regex)
        if spec.choice is not None:
            return matcher.grammar_from_lark("start: " + " | ".join(map(lark_string, spec.choice)))
        if spec.structural_tag is not None:
            tag = parse_schema(spec.structural_tag)
            return matcher.grammar_from_lark(structural_tag_grammar(tag, _inline_schema, special_tokens))
        assert spec.grammar is not None, "one of the fields is set"
        lark = lark_from_gbnf(spec.grammar) or spec.grammar
        return matcher.grammar_from_lark(prepare_lark(lark, _inline_schema))
    except ValueError as error:
        raise _refusal(spec, str(error)) from None


def _json_grammar(schema: dict[str, Any]) -> str:
    return llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=JSON_OPTIONS)


def _inline_schema(schema: Any) -> str:
    return json.dumps(prepare_schema(schema) | {"x-guidance": JSON_OPTIONS})


def _compile_error(grammar: str, tokenizer: llguidance.LLTokenizer) -> str | None:
    """Why ``grammar`` cannot be had, or cannot begin."""
    try:
        matcher = new_matcher(tokenizer, grammar)
    except ValueError as error:
        return str(error)
    if warnings := matcher.get_grammar_warnings():
        return first_line(warnings[0])
    matcher.compute_bitmask()
    return first_line(matcher.get_error()) if matcher.is_error() else None


def _key(spec: StructuredOutputs) -> str:
    """A text that tells specs apart, no longer than allowed."""
    name, value = _field(spec)
    if name in ("regex", "grammar") and not isinstance(value, str):
        raise _refusal(spec, f"must be a string, got {value!r:.60}")
    try:
        text = value if isinstance(value, str) else json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        is_model = hasattr(value, "model_json_schema")
        remedy = "; of a pydantic model, give model_json_schema()" if is_model else ""
        raise _refusal(spec, f"must be JSON: {error!s:.200}{remedy}") from None
    if len(text) > MAX_CHARACTERS:
        raise _refusal(spec, f"{len(text)} characters, at most {MAX_CHARACTERS}; make it smaller")
    return f"{name} {type(value).__name__} {text}"


def _field(spec: StructuredOutputs) -> tuple[str, Any]:
    """The one field that is set, and its value; false is a schema, but no JSON object."""
    values = {field.name: getattr(spec, field.name) for field in fields(spec)}
    if not values["json_object"]:
        del values["json_object"]
    return next((name, value) for name, value in values.items() if value is not None)


def _refusal(spec: StructuredOutputs, reason: str) -> InvalidRequestError:
    param = f"structured_outputs.{_field(spec)[0]}"
    return InvalidRequestError(f"{param}: {reason}", param=param)
