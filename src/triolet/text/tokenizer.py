"""Text to token ids and back, for one model.

It knows neither chat messages nor how tokens come one after another (see ``detokenizer``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import tokenizers

from triolet.errors import InvalidRequestError
from triolet.models.source import ModelFiles
from triolet.text.gguf_tokenizer import read_gguf_tokenizer
from triolet.text.huggingface_tokenizer import read_huggingface_tokenizer
from triolet.text.text_pieces import pieces_of
from triolet.text.token_bytes import spell_tokens
from triolet.text.tokenizer_parts import TokenizerParts

__all__ = ["Tokenizer", "load_tokenizer"]

LONG_TEXT = 2048
"""Characters from which it pays to hand a text to the library's own thread pool."""


def load_tokenizer(files: ModelFiles) -> Tokenizer:
    """The tokenizer that belongs to a model; raises :class:`ModelFileError` if its files are unusable."""
    if files.kind == "gguf":
        return Tokenizer(read_gguf_tokenizer(files.path))
    return Tokenizer(read_huggingface_tokenizer(files.path))


class Tokenizer:
    """Thread-safe and immutable.

    ``eos_token_ids`` are all tokens that end a generation, ``eos_token_id`` the one that templates call
    ``eos_token``. ``special_token_ids`` are the control tokens, left out of decoded text on request.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self._backend = parts.backend
        self._text_pieces = pieces_of(parts.backend, partial(_encode, parts.backend))
        spelling = spell_tokens(parts.backend)
        self._pieces = spelling.pieces
        self.has_leading_space = spelling.has_leading_space
        self.bos_token_id = parts.bos_token_id
        self.eos_token_id = parts.eos_token_id
        self.eos_token_ids = parts.end_token_ids
        self.chat_template = parts.chat_template
        added = parts.backend.get_added_tokens_decoder()
        self.special_token_ids = frozenset(i for i, token in added.items() if token.special)
        self._visible_pieces = tuple(
            b"" if i in self.special_token_ids else piece for i, piece in enumerate(self._pieces)
        )

    @property
    def vocab_size(self) -> int:
        """Number of tokens. The model may have more rows: those ids spell nothing."""
        return len(self._pieces)

    @property
    def bos_token(self) -> str | None:
        return None if self.bos_token_id is None else self.id_to_token(self.bos_token_id)

    @property
    def eos_token(self) -> str | None:
        return None if self.eos_token_id is None else self.id_to_token(self.eos_token_id)

    def id_to_token(self, token_id: int) -> str | None:
        """The token as the vocabulary writes it; None for an id that has none."""
        return self._backend.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``; special tokens written out in it become their ids.

        ``add_special_tokens`` puts in what the model wants around a text, usually a token at its
        beginning; a rendered chat template already holds it. Raises :class:`InvalidRequestError` for text
        that is not Unicode (a lone surrogate).
        """
        try:
            if add_special_tokens or self._text_pieces is None:
                return _encode(self._backend, text, add_special_tokens=add_special_tokens)
            return self._text_pieces.encode(text)
        except TypeError:
            raise _not_unicode(text) from None

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ``token_ids``; bytes that are not UTF-8 become U+FFFD, unknown ids nothing.

        It is what the tokens spell, exactly: spaces before punctuation are never tidied away.
        """
        text = self.token_bytes(token_ids, skip_special_tokens=skip_special_tokens).decode(errors="replace")
        return text.removeprefix(" ") if self.has_leading_space else text

    def token_bytes(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> bytes:
        """The bytes that ``token_ids`` spell, the model's own leading space included."""
        pieces = self._visible_pieces if skip_special_tokens else self._pieces
        size = len(pieces)
        return b"".join([pieces[i] if 0 <= i < size else b"" for i in token_ids])


def _encode(backend: tokenizers.Tokenizer, text: str, *, add_special_tokens: bool = False) -> list[int]:
    if len(text) < LONG_TEXT:
        ids: list[int] = backend.encode(text, add_special_tokens=add_special_tokens).ids
    else:
        ids = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
    return ids


def _not_unicode(text: object) -> Exception:
    if not isinstance(text, str):
        return TypeError(f"text must be a str, got {type(text).__name__}")
    position = next((i for i, character in enumerate(text) if "\ud800" <= character <= "\udfff"), 0)
    return InvalidRequestError(
        f"the text has a lone surrogate (U+{ord(text[position]):04X}) at character {position}; "
        "send whole characters"
    )
