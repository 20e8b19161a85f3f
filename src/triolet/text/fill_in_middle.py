"""Filling a gap between two texts: the marks by which a model is asked to, found in its vocabulary.

The order is prefix, suffix, middle (Bavarian et al., "Efficient Training of Language Models to Fill in the
Middle", 2022), which all families below have been trained with. Pure; knows a vocabulary and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["MIDDLE_FORMATS", "MiddleFormat", "find_middle_format", "middle_end_token_ids"]


class _Vocabulary(Protocol):
    """What has to be known of a tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> Sequence[int]: ...

    def id_to_token(self, token_id: int) -> str | None: ...


@dataclass(frozen=True, slots=True)
class MiddleFormat:
    """The marks of one family of models: before the left text, before the right one, at the end."""

    prefix: str
    suffix: str
    middle: str

    @property
    def marks(self) -> tuple[str, str, str]:
        return (self.prefix, self.suffix, self.middle)

    def prompt(self, left: str, right: str) -> str:
        """The text that the middle between ``left`` and ``right`` follows."""
        return f"{self.prefix}{left}{self.suffix}{right}{self.middle}"


MIDDLE_FORMATS = (
    MiddleFormat("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen Coder, CodeGemma
    MiddleFormat("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite Code, Stable Code
    MiddleFormat("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek Coder
)

_ENDS = (
    "<|endoftext|>", "<|fim_pad|>", "<fim_pad>", "<|file_sep|>", "<file_sep>", "<|file_separator|>",
    "<|repo_name|>", "<repo_name>",
)  # fmt: skip
"""What models of these families write after the middle; a model made for chats ends at few of them."""


def find_middle_format(vocabulary: _Vocabulary) -> MiddleFormat | None:
    """The format whose marks are tokens of the vocabulary; None where it has none of them."""
    for known in MIDDLE_FORMATS:
        if all(_token_id(vocabulary, mark) is not None for mark in known.marks):
            return known
    return None


def middle_end_token_ids(vocabulary: _Vocabulary) -> tuple[int, ...]:
    """The tokens after which there is no more of a middle."""
    ids = (_token_id(vocabulary, end) for end in _ENDS)
    return tuple(token_id for token_id in ids if token_id is not None)


def _token_id(vocabulary: _Vocabulary, token: str) -> int | None:
    token_ids = vocabulary.encode(token, add_special_tokens=False)
    is_one = len(token_ids) == 1 and vocabulary.id_to_token(token_ids[0]) == token
    return token_ids[0] if is_one else None
