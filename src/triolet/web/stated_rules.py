"""What ``/openapi.json`` says of how the fields of a body go together, and of fields that are not served.

It is said here and checked where the fields are used, as with :mod:`triolet.web.stated_limits`. What hangs on
the model (the tokens of its vocabulary, the length of a prompt), and what two numbers may be beside each
other, JSON Schema cannot say. Knows names of schemas, and nothing of how they are checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from triolet.sampling_params import MAX_COUNT, MAX_SEED
from triolet.web.anthropic.schema import CountTokensBody, MessagesBody
from triolet.web.fields import CHAT_NEUTRAL, COMPLETION_NEUTRAL, HARMLESS, RESPONSES_NEUTRAL

__all__ = ["with_rules"]

Schema = Mapping[str, Any]

_ON: Schema = {"const": True}
_NOTHING: Schema = {"enum": [None, False, 0, "", [], {}]}
_OFF: Schema = {"enum": [None, False]}
_LOGPROBS = "message.output_text.logprobs"


_BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result")
_SCHEMA: Schema = {"type": ["object", "boolean"]}
_NAME: Schema = {"pattern": "^[a-zA-Z0-9_.-]{1,128}$"}


def _has(**fields: Schema) -> Schema:
    return {"required": list(fields), "properties": fields}


def _when(condition: Schema, then: Schema) -> Schema:
    return {"if": condition, "then": then}


def _not_both(one: str, other: str, given: Schema) -> Schema:
    return {"not": _has(**{one: given, other: given})}


_STREAM_OPTIONS = _when(_has(stream_options={"type": "object"}), _has(stream=_ON))
_TOOL_NEEDED = _when(_has(tool_choice={"const": "required"}), _has(tools={"type": "array", "minItems": 1}))
_GENERATION: tuple[Schema, ...] = (
    _STREAM_OPTIONS,
    _when(_has(prompt_logprobs={"type": "integer"}), {"properties": {"stream": _OFF}}),
    _when(_has(return_progress=_ON), {**_has(stream=_ON), "not": _has(use_beam_search=_ON)}),
    _when(_has(length_penalty={"not": {"enum": [None, 1]}}), _has(use_beam_search=_ON)),
    {
        "properties": {
            "logit_bias": {"propertyNames": {"pattern": "^[0-9]{1,9}$"}},
            "truncate_prompt_tokens": {"not": {"const": 0}},
        }
    },
)

_RULES: Mapping[str, tuple[Schema, ...]] = {
    "ChatBody": (
        *_GENERATION,
        _TOOL_NEEDED,
        _when(_has(top_logprobs={"type": "integer", "minimum": 1}), _has(logprobs=_ON)),
        _not_both("thinking_budget", "reasoning_budget", {"type": "integer"}),
        _not_both("continue_final_message", "add_generation_prompt", _ON),
        {"properties": {"max_tokens": {"minimum": 1}, "max_completion_tokens": {"minimum": 1}}},
    ),
    "CompletionBody": (
        *_GENERATION,
        {"properties": {"prompt": {"minLength": 1, "minItems": 1}}},
        _when(_has(max_tokens={"const": 0}), _has(echo=_ON)),
    ),
    "ResponsesBody": (
        _STREAM_OPTIONS,
        _TOOL_NEEDED,
        {
            "anyOf": [
                _has(input={"type": "string", "minLength": 1}),
                _has(input={"type": "array", "minItems": 1}),
                _has(previous_response_id={"type": "string"}),
            ]
        },
        _when(_has(background=_ON), {"properties": {"store": {"enum": [None, True]}}}),
        _when(
            _has(top_logprobs={"type": "integer", "minimum": 1}),
            _has(include={"type": "array", "contains": {"const": _LOGPROBS}}),
        ),
    ),
    "TokenizeBody": (
        {"oneOf": [_has(prompt={"type": "string"}), _has(messages={"type": "array"})]},
        _when(_has(add_generation_prompt={"type": "boolean"}), _has(messages={"type": "array"})),
    ),
    "MessagesBody": (
        {
            "properties": {
                "max_tokens": {"minimum": 1},
                "stop_sequences": {"items": {"minLength": 1}},
                "temperature": {"minimum": 0, "maximum": 2},
                "top_p": {"exclusiveMinimum": 0, "maximum": 1},
                "top_k": {"minimum": -1, "maximum": MAX_COUNT},
                "seed": {"minimum": -MAX_SEED - 1, "maximum": MAX_SEED},
            }
        },
    ),
    "Message": (
        {
            "properties": {
                "refusal": {"enum": [None, ""]},
                **dict.fromkeys(("audio", "function_call"), _NOTHING),
            }
        },
        _when(
            {"properties": {"role": {"not": {"const": "assistant"}}}},
            {
                **_has(content={"type": ["string", "array"]}),
                "properties": {"content": {"type": ["string", "array"]}, "tool_calls": {"enum": [None, []]}},
            },
        ),
    ),
    "ContentPart": (_has(type={"const": "text"}, text={"type": "string"}),),
    "Tool": ({"properties": {"type": {"const": "function"}}},),
    "Function": ({"properties": {"name": _NAME}},),
    "FunctionTool": (_has(type={"const": "function"}, name=_NAME),),
    "InputMessage": ({"properties": {"content": {"minLength": 1, "minItems": 1}}},),
    "Block": (
        {
            "properties": {
                "type": {"enum": ["text", "thinking", "redacted_thinking", "tool_use", "tool_result"]}
            }
        },
        _when(_has(type={"const": "text"}), _has(text={"type": "string"})),
        _when(_has(type={"const": "tool_use"}), _has(id={"type": "string"}, name={"type": "string"})),
        _when(_has(type={"const": "tool_result"}), _has(tool_use_id={"type": "string"})),
    ),
    "ToolBody": (
        {
            "required": ["input_schema"],
            "properties": {
                "name": _NAME,
                "input_schema": {"type": "object"},
                "type": {"enum": [None, "custom"]},
                "allowed_callers": {"enum": [None, [], ["direct"]]},
                "defer_loading": _OFF,
                "input_examples": {"enum": [None, []]},
            },
        },
    ),
    "ToolChoice": (
        {"properties": {"type": {"enum": ["auto", "any", "tool", "none"]}}},
        _when(_has(type={"const": "tool"}), _has(name={"type": "string"})),
    ),
    "OutputConfig": (
        {"properties": {"effort": {"enum": [None, "low", "medium", "high", "xhigh", "max"]}}},
        _when(
            _has(format={"type": "object"}),
            {"properties": {"format": _has(type={"const": "json_schema"}, schema=_SCHEMA)}},
        ),
    ),
    "Thinking": (
        {
            "properties": {
                "type": {"enum": ["enabled", "adaptive", "disabled"]},
                "display": {"enum": [None, "summarized", "omitted"]},
            }
        },
        _when(_has(type={"const": "enabled"}), _has(budget_tokens={"type": "integer"})),
        _when(_has(budget_tokens={"type": "integer"}), _has(type={"const": "enabled"})),
    ),
}

_NEUTRAL: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "ChatBody": CHAT_NEUTRAL,
    "CompletionBody": COMPLETION_NEUTRAL,
    "CountTokensBody": CountTokensBody.neutral_fields,
    "MessagesBody": MessagesBody.neutral_fields,
    "ResponsesBody": RESPONSES_NEUTRAL,
}


def with_rules(name: str, schema: Schema) -> dict[str, Any]:
    """The schema of the struct ``name`` with what is said of it here."""
    told = dict(schema)
    if name in _NEUTRAL:
        told["properties"] = {**_unserved(_NEUTRAL[name]), **told["properties"]}
        told["additionalProperties"] = {"type": "null"}
    if name in _RULES:
        told["allOf"] = list(_RULES[name])
    return told


def _unserved(neutral: Mapping[str, Iterable[Any]]) -> dict[str, Any]:
    """Fields that are taken and not served, with the values that ask for nothing."""
    return {name: {} for name in sorted(HARMLESS)} | {
        name: {"enum": [None, *values]} for name, values in neutral.items()
    }
