"""Guesses at a sequence's next tokens, looked up in its own text: prompt and output so far.

Text repeats itself: code, quotations, lists, answers that take over parts of the prompt. What followed the
last few tokens at an earlier place is a guess at what follows now, which costs nothing but the look-up.

**ngram** takes what followed the latest place with the longest match, up to four tokens (prompt lookup
decoding, Saxena 2023). **suffix** looks at several places at once, goes along with the majority, counts
longer matches for more, and stops where the places disagree (after Oliaro et al., "SuffixDecoding", NeurIPS
2025).

A drafter belongs to one sequence and is shown its growing list of tokens. This module knows nothing of
sequences, of steps or of whether a guess was right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Protocol

__all__ = ["Drafter", "GramIndex", "NGramDrafter", "SuffixDrafter", "match_length"]

MAX_INDEXED_PER_CALL = 1024
"""Tokens of a long prompt taken into an index at once: 2 ms, so that a step does not wait for more."""
MAX_MATCH = 32
MIN_SHARE = 0.5


class Drafter(Protocol):
    """Makes guesses for one sequence."""

    def propose(self, token_ids: Sequence[int], limit: int) -> tuple[int, ...]:
        """Up to ``limit`` tokens that may follow ``token_ids``, none if there is no idea.

        ``token_ids`` is what it was in the last call, and more.
        """
        ...


class GramIndex:
    """Where each run of 1 … ``max_length`` tokens has been followed by another token, in one growing list.

    Of each run the latest ``num_places`` places are kept. Time: constant for each token added. Memory:
    ``max_length`` entries for each token, less where the text repeats itself.
    """

    def __init__(self, max_length: int, num_places: int) -> None:
        self._max_length = max_length
        self._num_places = num_places
        self._places: dict[tuple[int, ...], list[int]] = {}
        self._num_indexed = 0

    def extend(self, token_ids: Sequence[int]) -> bool:
        """Take in the tokens that are new; False if some are left for the next call."""
        end = min(len(token_ids), self._num_indexed + MAX_INDEXED_PER_CALL)
        for place in range(max(1, self._num_indexed), end):
            for length in range(1, min(self._max_length, place) + 1):
                places = self._places.setdefault(tuple(token_ids[place - length : place]), [])
                places.append(place)
                if len(places) > self._num_places:
                    del places[0]
        self._num_indexed = end
        return end == len(token_ids)

    def find(self, token_ids: Sequence[int]) -> list[int]:
        """The places, latest last, after the longest run that is at the end of ``token_ids`` too."""
        for length in range(min(self._max_length, len(token_ids)), 0, -1):
            places = self._places.get(tuple(token_ids[-length:]))
            if places:
                return places
        return []


class NGramDrafter:
    """The tokens after the latest place that ends as the text does, over up to ``max_length`` tokens."""

    def __init__(self, max_length: int = 4) -> None:
        self._index = GramIndex(max_length, num_places=1)

    def propose(self, token_ids: Sequence[int], limit: int) -> tuple[int, ...]:
        if not self._index.extend(token_ids):
            return ()
        places = self._index.find(token_ids)
        return _continue_from(token_ids, places[-1], limit) if places else ()


class SuffixDrafter:
    """What follows at most of the latest places that end as the text does, over up to 32 tokens."""

    def __init__(self, max_length: int = 3, num_places: int = 8) -> None:
        """``max_length``: of the runs by which places are found; they are told apart by longer ones."""
        self._index = GramIndex(max_length, num_places)

    def propose(self, token_ids: Sequence[int], limit: int) -> tuple[int, ...]:
        if not self._index.extend(token_ids):
            return ()
        weights = {place: match_length(token_ids, place) for place in self._index.find(token_ids)}
        if not weights:
            return ()
        # A short match is a weak sign: it is not followed far.
        limit = min(limit, 2 * max(weights.values()))
        guesses = {place: _continue_from(token_ids, place, limit) for place in weights}
        return _follow_majority(guesses, weights, limit)


def match_length(token_ids: Sequence[int], place: int) -> int:
    """How many tokens before ``place`` are those at the end of ``token_ids``, up to ``MAX_MATCH``."""
    length = 0
    while length < min(MAX_MATCH, place) and token_ids[place - 1 - length] == token_ids[-1 - length]:
        length += 1
    return length


def _follow_majority(
    guesses: dict[int, tuple[int, ...]], weights: dict[int, int], limit: int
) -> tuple[int, ...]:
    """Token by token what most of the guesses say that have been right with the majority so far."""
    draft: list[int] = []
    places: Iterable[int] = guesses
    while len(draft) < limit:
        votes: defaultdict[int, int] = defaultdict(int)
        for place in places:  # the latest last, so that it settles a tie
            votes[guesses[place][len(draft)]] += weights[place]
        token_id = max(reversed(votes), key=votes.__getitem__)
        if votes[token_id] < MIN_SHARE * sum(votes.values()):
            break
        places = [place for place in places if guesses[place][len(draft)] == token_id]
        draft.append(token_id)
    return tuple(draft)


def _continue_from(token_ids: Sequence[int], place: int, num_tokens: int) -> tuple[int, ...]:
    """The tokens from ``place`` on; where they run into the end, it is taken to go on in the same way."""
    period = len(token_ids) - place
    tail = token_ids[place : place + num_tokens]
    return tuple(tail[index % period] for index in range(num_tokens))
