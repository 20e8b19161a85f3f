"""Grammars for tests: a grammar is the tokens that may follow one another, as ``"3|4 5|6"``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["FakeConstraints"]


class FakeConstraints:
    """Follows sequences of sets of tokens. A slot that is asked about without a sequence is a KeyError.

    An empty set is a ValueError when its mask is asked for.
    """

    def __init__(self) -> None:
        self.grammars: dict[int, list[set[int]]] = {}
        self.accepted: dict[int, list[int]] = {}

    def warm_up(self) -> None:
        pass

    def prepare(self, grammar: str) -> None:
        pass

    def release(self, grammar: str) -> None:
        pass

    def close(self) -> None:
        pass

    def start(self, slot: int, grammar: str, output_token_ids: Sequence[int]) -> None:
        if grammar == "nonsense":
            raise ValueError("it makes no sense")
        self.grammars[slot] = [
            {int(token) for token in part.split("|") if token != "x"} for part in grammar.split()
        ]
        self.accepted[slot] = []
        for token_id in output_token_ids:
            assert self.accept(slot, token_id)

    def end(self, slot: int) -> None:
        self.grammars.pop(slot, None)
        self.accepted.pop(slot, None)

    def first_allowed(self, slot: int, token_ids: Sequence[int]) -> int | None:
        return next((token_id for token_id in token_ids if token_id in self._next(slot)), None)

    def are_allowed(self, slot: int, token_ids: Sequence[int]) -> list[bool]:
        return [token_id in self._next(slot) for token_id in token_ids]

    def fill_mask(self, slot: int, mask: NDArray[np.int32]) -> None:
        mask[:] = 0
        allowed = self._next(slot)
        if not allowed:
            raise ValueError("too long")
        bits = np.zeros(len(mask) * 32, dtype=np.uint8)
        bits[list(allowed)] = 1
        mask[:] = np.packbits(bits, bitorder="little").view(np.int32)

    def accept(self, slot: int, token_id: int) -> bool:
        if token_id not in self._next(slot):
            return False
        self.accepted[slot].append(token_id)
        return True

    def rollback(self, slot: int, num_tokens: int) -> None:
        assert 0 <= num_tokens <= len(self.accepted[slot])
        del self.accepted[slot][len(self.accepted[slot]) - num_tokens :]

    def _next(self, slot: int) -> set[int]:
        return self.grammars[slot][len(self.accepted[slot])]
