"""Beam search: keep the likeliest few continuations at each token, and in the end the best of them.

Pure arithmetic on log-probabilities. At each token every live beam grows by its likeliest next tokens; the
``beam_width`` likeliest of all these live on. One that grows by an end token has ended and takes no place
among the live ones. The search is over when all have ended, at ``max_tokens``, or as soon as no live beam
can come to a better score than all those that are kept, which changes no result.

This module knows nothing of requests, of text, or of how log-probabilities are had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from triolet.request import TokenLogprobs
from triolet.sampling_params import BeamSearchParams

__all__ = ["Beam", "BeamSearch"]


@dataclass(frozen=True, slots=True)
class Beam:
    """A continuation with the sum of its tokens' log-probabilities (natural logarithms)."""

    token_ids: tuple[int, ...] = ()
    cumulative_logprob: float = 0.0
    has_ended: bool = False


class BeamSearch:
    """``live`` are the beams that wait for their next tokens, likeliest first; none when it is over."""

    def __init__(self, params: BeamSearchParams, end_token_ids: frozenset[int]) -> None:
        self._params = params
        self._end_token_ids = end_token_ids
        self._ended: list[Beam] = []
        self._cut: list[Beam] = []
        self._num_tokens = 0
        self.live: list[Beam] = [Beam()]

    @property
    def num_candidates(self) -> int:
        """How many likeliest next tokens of each beam are needed: enough to live on whatever ends."""
        return self._params.beam_width * max(2, 1 + len(self._end_token_ids))

    def advance(self, candidates: Sequence[TokenLogprobs]) -> None:
        """Grow each live beam by its candidates, given in the order of ``live``.

        The first entry of each is the sampled token, which plays no part here.
        """
        grown = [
            Beam(
                (*beam.token_ids, token_id),
                beam.cumulative_logprob + logprob,
                token_id in self._end_token_ids,
            )
            for beam, position in zip(self.live, candidates, strict=True)
            for token_id, logprob in zip(position.token_ids[1:], position.logprobs[1:], strict=True)
            if isfinite(logprob)
        ]
        self._num_tokens += 1
        width = self._params.beam_width
        ended = self._ended + [beam for beam in grown if beam.has_ended]
        self._ended = sorted(ended, key=self.score, reverse=True)[:width]
        going_on = [beam for beam in grown if not beam.has_ended]
        self.live = sorted(going_on, key=lambda beam: beam.cumulative_logprob, reverse=True)[:width]
        if self._num_tokens == self._params.max_tokens:
            self.cut()
        elif self.live and not self._can_improve():
            self.live = []

    def cut(self) -> None:
        """End the search here: the live beams are as good as they are."""
        self._cut, self.live = self.live, []

    def best(self) -> list[Beam]:
        """The ``beam_width`` best of all that ended or were cut, best first."""
        return sorted(self._ended + self._cut, key=self.score, reverse=True)[: self._params.beam_width]

    def score(self, beam: Beam) -> float:
        """Log-probability over length to the power of ``length_penalty``; the end token counts."""
        return self._score(beam.cumulative_logprob, len(beam.token_ids))

    def _score(self, cumulative_logprob: float, length: int) -> float:
        return float(cumulative_logprob / length**self._params.length_penalty) if length else 0.0

    def _can_improve(self) -> bool:
        """Whether a live beam could yet be among the best: one more token is never a gain in probability.

        The score of what it has now is monotonic in the length, so that one end of the lengths to come
        bounds it.
        """
        if len(self._ended) < self._params.beam_width:
            return True
        likeliest = self.live[0].cumulative_logprob
        lengths = (self._num_tokens + 1, self._params.max_tokens)
        return max(self._score(likeliest, length) for length in lengths) > self.score(self._ended[-1])
