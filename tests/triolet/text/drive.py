"""Random outputs of a grammar: at each token, one of those that the mask allows."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from triolet.text.constraints import GrammarConstraints
from triolet.text.grammar_tokenizer import grammar_tokenizer
from triolet.text.tokenizer import Tokenizer


class Driver:
    """Writes what grammars allow. ``closing`` are texts that bring an output nearer to its end."""

    def __init__(self, tokenizer: Tokenizer, closing: Iterable[str] = ('"', "}", "]", '"}', '"]')) -> None:
        self.tokenizer = tokenizer
        self.constraints = GrammarConstraints(lambda: grammar_tokenizer(tokenizer, tokenizer.vocab_size))
        ids = (tokenizer.encode(text, add_special_tokens=False) for text in closing)
        self._closing = {found[0] for found in ids if len(found) == 1} | tokenizer.eos_token_ids

    def mask(self, slot: int = 0) -> NDArray[np.int32]:
        mask = np.zeros(-(-self.tokenizer.vocab_size // 32), np.int32)
        self.constraints.fill_mask(slot, mask)
        return mask

    def allowed(self, slot: int = 0) -> list[int]:
        return token_ids_of(self.mask(slot))

    def tokens(self, grammar: str, seed: int, *, max_tokens: int = 400) -> list[int]:
        """Allowed tokens up to an end of sequence; after a while those that end soonest."""
        generator = random.Random(seed)
        self.constraints.start(0, grammar, ())
        tokens: list[int] = []
        while not tokens or tokens[-1] not in self.tokenizer.eos_token_ids:
            assert len(tokens) < max_tokens, self.tokenizer.decode(tokens)
            allowed = self.allowed()
            closing = [token_id for token_id in allowed if token_id in self._closing]
            is_late = len(tokens) > 30
            tokens.append(
                generator.choice(closing if closing and (is_late or generator.random() < 0.4) else allowed)
            )
            assert self.constraints.accept(0, tokens[-1])
        return tokens[:-1]

    def text(self, grammar: str, seed: int) -> str:
        return self.tokenizer.token_bytes(self.tokens(grammar, seed)).decode()


def token_ids_of(mask: NDArray[np.int32]) -> list[int]:
    bits: NDArray[np.intp] = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
    return [int(i) for i in bits]
