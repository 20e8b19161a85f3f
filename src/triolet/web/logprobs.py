"""Log probabilities in the two shapes of the OpenAI API, with the true bytes of each token.

Knows nothing of requests or of streaming, but a converter may be given its tokens in pieces.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from triolet.request import TokenLogprobs
from triolet.web.serving_engine import TokenText

__all__ = ["ChatLogprobs", "CompletionLogprobs"]

LOWEST = -9999.0
"""What the API says instead of minus infinity, which JSON cannot."""


class ChatLogprobs:
    """The ``logprobs`` of a chat choice."""

    def __init__(self, tokenizer: TokenText) -> None:
        self._tokenizer = tokenizer

    def convert(self, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
        return {"content": [self._position(position) for position in logprobs], "refusal": None}

    def _position(self, position: TokenLogprobs) -> dict[str, Any]:
        entries = [
            self._entry(token_id, logprob)
            for token_id, logprob in zip(position.token_ids, position.logprobs, strict=True)
        ]
        return entries[0] | {"top_logprobs": entries[1:]}

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = self._tokenizer.token_bytes((token_id,))
        return {
            "token": data.decode(errors="replace"),
            "logprob": max(logprob, LOWEST),
            "bytes": list(data),
        }


class CompletionLogprobs:
    """The ``logprobs`` of a completion choice. A token that is no whole text is written ``bytes:\\xe2\\x80``.

    ``text_offset`` counts code points from the start of the choice's text.
    """

    def __init__(self, tokenizer: TokenText) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def convert(self, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
        offsets = []
        for position in logprobs:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(self._tokenizer.token_bytes(position.token_ids[:1])))
        return {
            "tokens": [self._name(position.token_ids[0]) for position in logprobs],
            "token_logprobs": [max(position.logprobs[0], LOWEST) for position in logprobs],
            "top_logprobs": [self._top(position) for position in logprobs],
            "text_offset": offsets,
        }

    def _top(self, position: TokenLogprobs) -> dict[str, float]:
        pairs = zip(position.token_ids, position.logprobs, strict=True)
        return {self._name(token_id): max(logprob, LOWEST) for token_id, logprob in pairs}

    def _name(self, token_id: int) -> str:
        data = self._tokenizer.token_bytes((token_id,))
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
