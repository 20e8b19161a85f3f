"""Request fields that are not served: which values of them change nothing, and which fields never do.

A field that would change the answer is never dropped in silence: with a value other than its neutral one it
is a 400 that names it. Fields that cannot change the answer are accepted and ignored; a field that nobody
knows is accepted only as null.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

import msgspec

from triolet.errors import InvalidRequestError

__all__ = [
    "CHAT_NEUTRAL",
    "COMPLETION_NEUTRAL",
    "HARMLESS",
    "RESPONSES_NEUTRAL",
    "check_other_fields",
    "is_neutral",
]

HARMLESS = frozenset({
    "cache_prompt",
    "metadata",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "timings_per_token",
})  # fmt: skip
"""Accepted and ignored: book-keeping, and hints about what may be computed faster."""

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "early_stopping": (False,),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
}

COMPLETION_NEUTRAL: Mapping[str, tuple[Any, ...]] = _NEUTRAL | {
    "add_special_tokens": (True,),
    "prompt_embeds": (),
}
"""Fields of a completion that are not served, with the values of them that ask for nothing."""

CHAT_NEUTRAL: Mapping[str, tuple[Any, ...]] = _NEUTRAL | {
    "add_special_tokens": (False,),
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Fields of a chat completion that are not served, with the values of them that ask for nothing."""

RESPONSES_NEUTRAL: Mapping[str, tuple[Any, ...]] = _NEUTRAL | {
    "context_management": ([],),
    "conversation": (),
    "logprobs": (False,),
    "max_completion_tokens": (),
    "max_tokens": (),
    "messages": (),
    "moderation": (),
    "n": (1,),
    "prompt": (),
    "reasoning_effort": (),
    "response_format": (),
}
"""Fields of a request for a response that are not served, with the values of them that ask for nothing."""

_INSTEAD: Mapping[str, str] = {
    "context_management": "leave older turns out of what you send",
    "conversation": "send previous_response_id",
    "function_call": "send tool_choice",
    "functions": "send tools",
    "guided_choice": "send structured_outputs.choice",
    "guided_grammar": "send structured_outputs.grammar",
    "guided_json": "send structured_outputs.json",
    "guided_regex": "send structured_outputs.regex",
    "logprobs": "send include: ['message.output_text.logprobs'], and top_logprobs",
    "max_completion_tokens": "send max_output_tokens",
    "max_tokens": "send max_output_tokens",
    "messages": "send input",
    "prompt": "send input and instructions",
    "reasoning_effort": "send reasoning.effort",
    "response_format": "send text.format",
}
"""What took the place of fields that others have given up."""


LONGEST_SHOWN = 200
"""How much of a name that means nothing here is told again."""


def is_neutral(value: Any, neutral_values: Iterable[Any]) -> bool:
    """Whether a value asks for nothing: null, or one of the neutral values (where true is not 1)."""
    return value is None or any(
        value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
        for neutral in neutral_values
    )


def check_other_fields(
    fields: Mapping[str, msgspec.Raw], known: Iterable[str], neutral: Mapping[str, tuple[Any, ...]]
) -> None:
    """Refuse what would have to be ignored. Raises :class:`InvalidRequestError` naming one such field."""
    for name in sorted(fields.keys() - HARMLESS - set(known)):
        value = _decoded(name, fields[name])
        if name not in neutral and value is not None:
            close = get_close_matches(name, {*known, *neutral}, n=1, cutoff=0.8)
            remedy = f"did you mean {close[0]}?" if close else "remove it"
            shown = name[:LONGEST_SHOWN] or '""'
            raise InvalidRequestError(f"{shown}: unknown field; {remedy}", param=shown)
        if not is_neutral(value, neutral.get(name, ())):
            remedy = _INSTEAD.get(name, "remove it")
            raise InvalidRequestError(f"{name}: this server does not support it; {remedy}", param=name)


def _decoded(name: str, raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidRequestError(f"{name}: {error}", param=name) from None
