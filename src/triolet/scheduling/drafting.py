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

from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Protocol

__all__ = [
    "MAX_MATCH",
    "NO_GUESS",
    "Drafter",
    "GramIndex",
    "Guess",
    "NGramDrafter",
    "SuffixDrafter",
    "match_length",
]

MAX_INDEXED_PER_CALL = 1024
"""Tokens of a long prompt taken into an index at once: 1 ms, so that a step does not wait for more."""
MAX_MATCH = 20
MIN_SHARE = 0.5
_TOKEN_BITS = 24

Guess = tuple[tuple[int, ...], int]
"""Tokens, and over how many tokens before them the text is the same where they were found."""

NO_GUESS: Guess = ((), 0)


class Drafter(Protocol):
    """Makes guesses for one sequence."""

    def propose(self, token_ids: Sequence[int], limit: int) -> Guess:
        """Up to ``limit`` tokens that may follow ``token_ids``, none if there is no idea.

        ``token_ids`` is what it was in the last call, and more.
        """
        ...


class GramIndex:
    """Where each run of 1 … ``max_length`` tokens has been followed by another token, in one growing list.

    Runs are told apart by numbers made of their tokens. Of each the latest place is kept, and for each place
    the one before it. Time: constant for each token added. Memory: ``max_length`` entries for each token,
    less where the text repeats itself.
    """

    def __init__(self, max_length: int) -> None:
        self._latest: list[dict[int, int]] = [{} for _ in range(max_length)]
        self._before = [array("i", [-1]) for _ in range(max_length)]
        self._runs = [-1] * max_length
        self._num_indexed = 0

    def extend(self, token_ids: Sequence[int]) -> bool:
        """Take in the tokens that are new; False if some are left for the next call."""
        end = min(len(token_ids), self._num_indexed + MAX_INDEXED_PER_CALL)
        for place in range(self._num_indexed, end):
            self._add(place, token_ids[place])
        self._num_indexed = end
        return end == len(token_ids)

    def _add(self, place: int, token_id: int) -> None:
        """``token_id`` is at ``place``: what has ended there is followed by it."""
        shorter = 0
        for index, (latest, before) in enumerate(zip(self._latest, self._before, strict=True)):
            run = self._runs[index]
            if place > index:
                before.append(latest.get(run, -1))
                latest[run] = place
            elif place:
                before.append(-1)
            self._runs[index] = shorter << _TOKEN_BITS | token_id
            shorter = run

    def find(self, num_places: int) -> list[int]:
        """Up to so many places, the latest first, after the longest run that the text ends with too."""
        for index in range(min(len(self._latest), self._num_indexed) - 1, -1, -1):
            place = self._latest[index].get(self._runs[index], -1)
            if place < 0:
                continue
            before = self._before[index]
            places: list[int] = []
            while place >= 0 and len(places) < num_places:
                places.append(place)
                place = before[place]
            return places
        return []


class NGramDrafter:
    """The tokens after the latest place that ends as the text does, over up to ``max_length`` tokens."""

    def __init__(self, max_length: int = 4) -> None:
        self._index = GramIndex(max_length)

    def propose(self, token_ids: Sequence[int], limit: int) -> Guess:
        if not self._index.extend(token_ids):
            return NO_GUESS
        places = self._index.find(1)
        if not places:
            return NO_GUESS
        return _continue_from(token_ids, places[0], limit), match_length(token_ids, places[0])


class SuffixDrafter:
    """What follows at most of the latest places that end as the text does; see ``MAX_MATCH``."""

    def __init__(self, max_length: int = 3, num_places: int = 4) -> None:
        """``max_length``: of the runs by which places are found; they are told apart by longer ones."""
        self._index = GramIndex(max_length)
        self._num_places = num_places

    def propose(self, token_ids: Sequence[int], limit: int) -> Guess:
        if not self._index.extend(token_ids):
            return NO_GUESS
        weights = {place: match_length(token_ids, place) for place in self._index.find(self._num_places)}
        if not weights:
            return NO_GUESS
        best = max(weights, key=weights.__getitem__)
        if 2 * weights[best] > sum(weights.values()):
            return _continue_from(token_ids, best, limit), weights[best]  # it outvotes all others together
        guesses = {place: _continue_from(token_ids, place, limit) for place in weights}
        return _follow_majority(guesses, weights, limit), weights[best]


def match_length(token_ids: Sequence[int], place: int) -> int:
    """How many tokens before ``place`` are those at the end of ``token_ids``, up to ``MAX_MATCH``."""
    length, end = 0, len(token_ids)
    longest = min(MAX_MATCH, place)
    while length < longest and token_ids[place - 1 - length] == token_ids[end - 1 - length]:
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
        for place in places:  # the latest first, so that it settles a tie
            votes[guesses[place][len(draft)]] += weights[place]
        token_id = max(votes, key=votes.__getitem__)
        if votes[token_id] < MIN_SHARE * sum(votes.values()):
            break
        places = [place for place in places if guesses[place][len(draft)] == token_id]
        draft.append(token_id)
    return tuple(draft)


def _continue_from(token_ids: Sequence[int], place: int, num_tokens: int) -> tuple[int, ...]:
    """The tokens from ``place`` on; where they run into the end, it is taken to go on in the same way."""
    tail = tuple(token_ids[place : place + num_tokens])
    if len(tail) == num_tokens:
        return tail
    period = len(tail)
    return tuple(tail[index % period] for index in range(num_tokens))
