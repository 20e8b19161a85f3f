"""What schemathesis holds each answer to besides its own checks: the document says what is taken.

schemathesis makes bodies from the types of fields, and cannot from how they go together, so those rules are
taken out of what it is given; the bodies it makes are then held to the whole document. What that allows must
be taken, but for the cases that are listed here, which no schema can tell; what it does not must be refused.
It is loaded by schemathesis itself, through ``SCHEMATHESIS_HOOKS``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import schemathesis
from jsonschema import Draft202012Validator
from schemathesis import Case, HookContext, Response
from schemathesis.checks import CheckContext

__all__ = ["UNSAID", "before_load_schema", "is_taken_as_documented"]

UNSAID: Mapping[str, str] = {
    "a token is one of the model's vocabulary": r"not in the vocabulary|token id out of range",
    "an integer has no decimal point, even before zeros": r"Expected `int.*got `float`",
    "starting_after goes with stream=true": r"starting_after: must be the number of an event, with stream",
    "a conversation, or each of several prompts, has some text": r"^(prompt|messages).*: is empty",
    "min_tokens is at most max_tokens": r"min_tokens: must be at most",
    "a search of beams takes few other fields": r"(not allowed|needed) with use_beam_search",
    "a search has fewer beams than there may be choices": r"^n: must be an integer in",
    "best_of is n": r"best_of: all continuations are returned",
    "max_tokens is max_completion_tokens": r"max_tokens: it is the older name",
    "a budget of thinking is below max_tokens": r"thinking.budget_tokens: must be (below|an integer)",
    "a suffix needs a model that fills gaps": r"^suffix: ",
    "a result is that of an earlier call": r"tool_use_id: no earlier message",
    "a block fits the role that says it": r"blocks of type .* are not served here",
    "a tool that is chosen is one of the tools, each of which has its own name": r"^(tool_choice|tools\[)",
    "what the output must be can be compiled": r"^(response_format|structured_outputs|text\.format|output_c)",
    "an item of a conversation has the fields of its type": r"^input\[",
    "variables of a template are no fields of its own": r"^chat_template_kwargs",
}  # fmt: skip
"""Conditions of a request that are in no schema, and the errors that tell of them."""
NOT_ABOUT_THE_DATA = frozenset({401, 403, 404, 409, 429})
_RULES = {"if", "not", "anyOf", "oneOf"}
_documents: list[dict[str, Any]] = []


@schemathesis.hook
def before_load_schema(_context: HookContext, raw_schema: dict[str, Any]) -> None:
    """Keep the whole document, and take out what schemathesis cannot make bodies from."""
    _documents.append(deepcopy(raw_schema))
    for schema in raw_schema["components"]["schemas"].values():
        if "allOf" in schema:
            schema["allOf"] = [rule for rule in schema["allOf"] if _RULES.isdisjoint(rule)]


@schemathesis.check
def is_taken_as_documented(_context: CheckContext, response: Response, case: Case[Any]) -> None:
    """Raises AssertionError where the document says otherwise."""
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    status = response.status_code
    if status >= 500 or status in NOT_ABOUT_THE_DATA:
        return
    broken = next(_broken_rules(case), None)
    if broken is not None:
        assert status == 400, f"the document does not allow it ({broken}), and it was taken"
    elif status >= 400:
        message = json.loads(response.content)["error"]["message"]
        is_unsaid = any(re.search(pattern, message) for pattern in UNSAID.values())
        assert is_unsaid, f"the document allows it, and it was refused: {message}"


def _broken_rules(case: Case[Any]) -> Iterator[str]:
    """What is wrong with a body by the whole document."""
    document = _documents[-1]
    operation = document["paths"][case.operation.path][case.operation.method]
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        whole = {**schema, "components": document["components"]}
        for error in Draft202012Validator(whole).iter_errors(case.body):
            yield error.message[:200]
