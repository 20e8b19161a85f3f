"""A model's vocabulary as llguidance wants it, and the limits under which grammars run.

This module knows nothing of particular grammars or requests.
"""

from __future__ import annotations

import llguidance

from triolet.models.source import ModelFiles
from triolet.text.grammar_cache import LruCache
from triolet.text.tokenizer import Tokenizer, load_tokenizer

__all__ = ["LIMITS", "grammar_tokenizer", "load_grammar_tokenizer"]

LIMITS = llguidance.LLParserLimits(
    initial_lexer_fuel=250_000,
    step_lexer_fuel=100_000,
    max_lexer_states=20_000,
    verbose_errors=False,
)
"""They end a grammar that would take too long (about a second to compile, tens of milliseconds a token) or
too much memory (a lexer state is 1 to 2 kB)."""


MAX_TEXTS = 4096
MAX_CHARACTERS = 2**18


class _Vocabulary:
    """What ``llguidance.TokenizerWrapper`` reads off a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        num_tokens = min(tokenizer.vocab_size, vocab_size)
        spelled = [tokenizer.token_bytes((token_id,)) for token_id in range(num_tokens)]
        self.tokens = spelled + [b""] * (vocab_size - num_tokens)
        self.special_token_ids = [i for i in sorted(tokenizer.special_token_ids) if i < num_tokens]
        self.eos_token_id = min(tokenizer.eos_token_ids)
        self.bos_token_id = tokenizer.bos_token_id
        self._tokenizer = tokenizer
        self._encoded = LruCache[list[int]](max_entries=MAX_TEXTS, max_characters=MAX_CHARACTERS)

    def __call__(self, text: str | bytes) -> list[int]:
        """Asked for whenever a grammar leaves no choice, so mostly of texts that came up before."""
        if isinstance(text, bytes):
            text = text.decode()
        token_ids = self._encoded.get(text)
        if token_ids is None:
            token_ids = self._tokenizer.encode(text, add_special_tokens=False)
            self._encoded.put(text, token_ids)
        return token_ids


def grammar_tokenizer(tokenizer: Tokenizer, vocab_size: int) -> llguidance.LLTokenizer:
    """The tokens that a model with ``vocab_size`` rows can produce; ids without a token are never allowed.

    It takes a tenth of a second for 50,000 tokens.
    """
    wrapper = llguidance.TokenizerWrapper(_Vocabulary(tokenizer, vocab_size))
    return llguidance.LLTokenizer(wrapper, eos_token=sorted(tokenizer.eos_token_ids))


def load_grammar_tokenizer(files: ModelFiles, vocab_size: int) -> llguidance.LLTokenizer:
    """The same, from a model's files. Raises ModelFileError if they are unusable."""
    return grammar_tokenizer(load_tokenizer(files), vocab_size)
