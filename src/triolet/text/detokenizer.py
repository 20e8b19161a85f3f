"""Token ids to text as they come: each piece is whole characters, and the pieces join to the whole text.

The bytes of the tokens go through an incremental UTF-8 decoder, so what is held back is never more than
the up to three bytes of an unfinished character: a run of replacement characters costs nothing extra.

It knows neither stop strings nor why a token was generated.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from triolet.text.tokenizer import Tokenizer

__all__ = ["Detokenizer"]


class Detokenizer:
    """Text of one sequence of tokens. Its invariant, for any way of cutting ``ids`` into chunks::

        "".join(map(detokenizer.add, chunks)) + detokenizer.flush() == tokenizer.decode(ids, ...)

    ``is_continuation`` says that other text goes before the tokens, so that a space which the first one
    spells is kept (SentencePiece models put a space at the beginning of every text, which
    :meth:`Tokenizer.decode` drops again).
    """

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, is_continuation: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._is_space_due = tokenizer.has_leading_space and not is_continuation

    def add(self, token_ids: Sequence[int]) -> str:
        """The text that is certain after these tokens; constant time per token."""
        data = self._tokenizer.token_bytes(token_ids, skip_special_tokens=self._skip_special_tokens)
        return self._trim(self._decoder.decode(data))

    def flush(self) -> str:
        """What an unfinished character at the end becomes: U+FFFD, or nothing."""
        return self._trim(self._decoder.decode(b"", final=True))

    def _trim(self, text: str) -> str:
        if self._is_space_due and text:
            self._is_space_due = False
            return text.removeprefix(" ")
        return text
