"""The pieces of a text between special tokens, each turned into token ids once while it is remembered.

A tokenizer cuts a text at its special tokens before it does anything else, so that the pieces know nothing of
each other. In a chat most of them come again: what the template writes into every prompt, the system's
message, the earlier turns of a conversation.

Knows nothing of chats or of models.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

import tokenizers

__all__ = ["TextPieces", "pieces_of"]

MAX_NUM_MARKS = 512
"""With more special tokens than that, looking for them costs what it saves."""
NUM_REMEMBERED = 512
LONGEST_REMEMBERED = 2048
"""Characters: some 12 MB in all, at the worst."""


class TextPieces:
    """Encodes piece by piece. Thread-safe. ``encode`` does it for one; texts are cut at ``marks``."""

    def __init__(self, encode: Callable[[str], list[int]], marks: Sequence[str]) -> None:
        self._encode = encode
        # The first alternative that fits is taken: the longest, as the library has it.
        self._cut = re.compile(f"({'|'.join(map(re.escape, sorted(marks, key=len, reverse=True)))})").split
        self._remembered = lru_cache(NUM_REMEMBERED)(encode)

    def encode(self, text: str) -> list[int]:
        """The token ids. Raises what encoding a piece raises."""
        token_ids: list[int] = []
        for piece in self._cut(text):
            if piece:
                remember = self._remembered if len(piece) <= LONGEST_REMEMBERED else self._encode
                token_ids += remember(piece)
        return token_ids


def pieces_of(backend: tokenizers.Tokenizer, encode: Callable[[str], list[int]]) -> TextPieces | None:
    """For a tokenizer and its ``encode``, which puts nothing around a text.

    None where a piece is treated by what is beside it, or there is nothing to cut at.
    """
    tokens = [token for token in backend.get_added_tokens_decoder().values() if not token.normalized]
    if not 0 < len(tokens) <= MAX_NUM_MARKS:
        return None
    if any(token.lstrip or token.rstrip or token.single_word or not token.content for token in tokens):
        return None
    if backend.pre_tokenizer is not None and b'"prepend_scheme":"first"' in _description(backend):
        return None
    return TextPieces(encode, [token.content for token in tokens])


def _description(backend: tokenizers.Tokenizer) -> bytes:
    """The pre-tokenizer as JSON."""
    state: bytes = backend.pre_tokenizer.__getstate__()
    return state
