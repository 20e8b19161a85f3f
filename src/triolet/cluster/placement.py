"""Placement: which rank a request goes to. Pure and deterministic.

A rank is as good as it is soon done with what it has and with this request: the tokens that it has still to
compute of prompts, ``REQUEST_COST`` for each request that it has not ended, and of this prompt what is not in
its prefix cache. So a rank that has computed the same prefix gets the request, unless it is busier by more
than that saves.

This module knows no process, no stream and no clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from triolet.request import Request

__all__ = ["REQUEST_COST", "Placement", "PrefixAffinity", "PrefixKey", "RankBurden"]

REQUEST_COST = 128
"""Tokens of prompts that cost as much as having one more request to generate for."""

PREFIX_LENGTHS = (64, 16, 4, 1)
"""Blocks of a prompt's beginning that are remembered, longest first."""

MAX_PREFIXES = 16_384

PrefixKey = tuple[int, int, str]
"""Its number of tokens, their hash, the salt of their cache. That two share a hash does no harm."""


@dataclass(frozen=True, slots=True)
class RankBurden:
    """What a rank has to do: in tokens as explained above, and the share of its KV blocks in use."""

    rank: int
    num_tokens: int
    kv_usage: float = 0.0


class PrefixAffinity:
    """Which ranks have computed which beginnings of prompts; of very many the ones longest unused go."""

    def __init__(self, block_size: int, *, max_prefixes: int = MAX_PREFIXES) -> None:
        self._lengths = [num_blocks * block_size for num_blocks in PREFIX_LENGTHS]
        self._max_prefixes = max_prefixes
        self._ranks: OrderedDict[PrefixKey, set[int]] = OrderedDict()

    def __len__(self) -> int:
        """Number of beginnings that are remembered."""
        return len(self._ranks)

    def keys(self, request: Request) -> list[PrefixKey]:
        """The beginnings of its prompt, longest first. The last token of a prompt is always computed."""
        prompt, salt = request.prompt_token_ids, request.options.cache_salt
        return [(length, hash(prompt[:length]), salt) for length in self._lengths if length < len(prompt)]

    def num_cached(self, keys: Iterable[PrefixKey]) -> dict[int, int]:
        """By rank, how many tokens of the prompt it has computed, if any."""
        found: dict[int, int] = {}
        for key in keys:
            for rank in self._ranks.get(key, ()):
                found.setdefault(rank, key[0])
        return found

    def remember(self, keys: Iterable[PrefixKey], rank: int) -> None:
        """A prompt that begins like this goes to the rank."""
        for key in keys:
            self._ranks.setdefault(key, set()).add(rank)
            self._ranks.move_to_end(key)
        while len(self._ranks) > self._max_prefixes:
            self._ranks.popitem(last=False)

    def forget(self, rank: int) -> None:
        """The rank's cache is empty."""
        for key in [key for key, ranks in self._ranks.items() if rank in ranks]:
            self._ranks[key].discard(rank)
            if not self._ranks[key]:
                del self._ranks[key]

    def clear(self) -> None:
        """All caches are empty."""
        self._ranks.clear()


class Placement:
    """Chooses ranks, and remembers where prefixes went. Among equals ranks take turns.

    ``affinity``: None where ranks have no prefix caches.
    """

    def __init__(self, num_ranks: int, affinity: PrefixAffinity | None) -> None:
        self._num_ranks = num_ranks
        self._turn = 0
        self._affinity = affinity

    def place(self, request: Request, burdens: Sequence[RankBurden]) -> int:
        """One of the ranks given, of which there is at least one."""
        keys = [] if self._affinity is None else self._affinity.keys(request)
        cached = {} if self._affinity is None else self._affinity.num_cached(keys)
        rank = min(burdens, key=lambda burden: self._cost(burden, cached)).rank
        self._turn = (rank + 1) % self._num_ranks
        if self._affinity is not None:
            self._affinity.remember(keys, rank)
        return rank

    def forget(self, rank: int) -> None:
        """The rank's prefix cache is empty."""
        if self._affinity is not None:
            self._affinity.forget(rank)

    def forget_all(self) -> None:
        """All prefix caches are empty."""
        if self._affinity is not None:
            self._affinity.clear()

    def _cost(self, burden: RankBurden, cached: Mapping[int, int]) -> tuple[int, int, int]:
        turn = (burden.rank - self._turn) % self._num_ranks
        return burden.num_tokens - cached.get(burden.rank, 0), round(10 * burden.kv_usage), turn
