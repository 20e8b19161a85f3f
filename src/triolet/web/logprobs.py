"""Log probabilities in the two shapes of the OpenAI API, with the true bytes of each token.

A token without any probability, as the first of a prompt is, has an entry without log-probabilities.
Knows nothing of streaming, but a converter may be given its tokens in pieces.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from triolet.request import TokenLogprobs
from triolet.web.generation import FoldedChoice
from triolet.web.serving_engine import TokenText

__all__ = ["ChatLogprobs", "CompletionLogprobs", "prompt_logprobs_of"]

LOWEST = -9999.0
"""What the API says instead of minus infinity, which JSON cannot."""


class ChatLogprobs:
    """The ``logprobs`` of a chat choice."""

    def __init__(self, tokenizer: TokenText) -> None:
        self._tokenizer = tokenizer

    def convert(self, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
        return {"content": self.positions(logprobs), "refusal": None}

    def positions(self, logprobs: Sequence[TokenLogprobs]) -> list[dict[str, Any]]:
        """One entry for each token."""
        return [self._position(position) for position in logprobs]

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
            data = self._tokenizer.token_bytes(position.token_ids[:1], skip_special_tokens=True)
            self._offset += len(self._decoder.decode(data))
        return {
            "tokens": [self._name(position.token_ids[0]) for position in logprobs],
            "token_logprobs": [
                max(position.logprobs[0], LOWEST) if position.logprobs else None for position in logprobs
            ],
            "top_logprobs": [self._top(position) for position in logprobs],
            "text_offset": offsets,
        }

    def _top(self, position: TokenLogprobs) -> dict[str, float] | None:
        if not position.logprobs:
            return None
        pairs = zip(position.token_ids, position.logprobs, strict=True)
        return {self._name(token_id): max(logprob, LOWEST) for token_id, logprob in pairs}

    def _name(self, token_id: int) -> str:
        data = self._tokenizer.token_bytes((token_id,))
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def prompt_logprobs_of(choice: FoldedChoice, tokenizer: TokenText) -> list[dict[str, Any] | None] | None:
    """``prompt_logprobs`` of an answer: by position, then by token id; None for the first token."""
    if choice.prompt is None or choice.prompt.logprobs is None:
        return None
    positions = choice.prompt.logprobs
    return [None if position is None else _by_token_id(position, tokenizer) for position in positions]


def _by_token_id(position: TokenLogprobs, tokenizer: TokenText) -> dict[str, Any]:
    ranks = (position.rank, *range(1, len(position.token_ids)))
    entries = zip(position.token_ids, position.logprobs, ranks, strict=True)
    return {
        str(token_id): {
            "logprob": max(logprob, LOWEST),
            "rank": rank,
            "decoded_token": tokenizer.token_bytes((token_id,)).decode(errors="replace"),
        }
        for token_id, logprob, rank in entries
    }
