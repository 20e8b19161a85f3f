"""What is read off a model's files to make a tokenizer, whatever their format.

This module knows neither the formats nor requests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import tokenizers

__all__ = ["TokenizerParts", "end_of_turn_ids"]

END_OF_TURN_TOKENS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|eot|>",
    "<end_of_turn>",
    "<|end_of_turn|>",
)
"""Tokens that close a turn in well-known chat formats (ChatML, Llama 3, Llama 4, Gemma, OpenChat)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerParts:
    """The pieces of a :class:`triolet.text.tokenizer.Tokenizer`.

    ``backend`` puts in the beginning-of-sequence token itself, by its post-processor. ``eos_token_id`` is
    the token that chat templates call ``eos_token``; ``end_token_ids`` are all that end a generation.
    """

    backend: tokenizers.Tokenizer
    bos_token_id: int | None
    eos_token_id: int | None
    end_token_ids: frozenset[int]
    chat_template: str | None


def end_of_turn_ids(backend: tokenizers.Tokenizer, chat_template: str | None) -> frozenset[int]:
    """The special tokens that close a turn in ``chat_template``: some models do not list theirs as an end."""
    if chat_template is None:
        return frozenset()
    known: Iterable[tuple[int, tokenizers.AddedToken]] = backend.get_added_tokens_decoder().items()
    return frozenset(
        token_id
        for token_id, token in known
        if token.special and token.content in END_OF_TURN_TOKENS and token.content in chat_template
    )
