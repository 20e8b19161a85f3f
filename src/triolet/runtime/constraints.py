"""What the sampler asks of grammars: which tokens each constrained sequence may go on with.

Only the contract; whoever joins the core puts in something that knows how tokens are spelled. This module
knows neither grammars nor text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Constraints"]


class Constraints(Protocol):
    """The grammars of the sequences in the runner's slots. One thread calls all but ``warm_up``, ``prepare``
    and ``release``.

    A mask is ``(ceil(V / 32),)`` int32 for a vocabulary of V tokens; bit ``i % 32`` of word ``i // 32`` is
    set if token ``i`` may come next. End-of-sequence tokens may come where the grammar may end; where it
    must end, nothing else may.
    """

    def warm_up(self) -> None:
        """Begin, beside other work, what the first grammar would have to wait for. Returns at once."""
        ...

    def prepare(self, grammar: str) -> None:
        """Begin, beside other work, what :meth:`start` would have to do first, and keep it for that.

        Returns at once. What was prepared is released as often, later.
        """
        ...

    def release(self, grammar: str) -> None:
        """What :meth:`prepare` made need not be kept any longer."""
        ...

    def start(self, slot: int, grammar: str, output_token_ids: Sequence[int]) -> None:
        """A sequence comes (back) to ``slot``, with what it has put out so far.

        Raises ValueError if ``grammar`` cannot be read or does not allow that output.
        """
        ...

    def end(self, slot: int) -> None:
        """The sequence in ``slot`` has left; a slot without one is left as it is."""
        ...

    def first_allowed(self, slot: int, token_ids: Sequence[int]) -> int | None:
        """The first of ``token_ids`` that the mask of ``slot`` has, None if it has none of them.

        Where the mask may be known to have one token alone, it is that one, asked about or not. To ask about
        a few tokens is less work than a mask.
        """
        ...

    def are_allowed(self, slot: int, token_ids: Sequence[int]) -> list[bool]:
        """Whether the mask of ``slot`` has each of ``token_ids``."""
        ...

    def fill_mask(self, slot: int, mask: NDArray[np.int32]) -> None:
        """Write the mask of the next token of ``slot``. Raises ValueError if the grammar's limits are hit."""
        ...

    def accept(self, slot: int, token_id: int) -> bool:
        """Note the token that came next; False, and nothing noted, if it is not allowed."""
        ...

    def close(self) -> None:
        """End what is done beside other work. May be called twice; nothing else is called afterwards."""
        ...

    def rollback(self, slot: int, num_tokens: int) -> None:
        """Take back the last ``num_tokens`` that were accepted."""
        ...
