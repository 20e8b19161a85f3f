"""Against looking at every continuation there is, over distributions made up for the purpose."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from triolet.frontend.beam_search import Beam, BeamSearch
from triolet.request import TokenLogprobs
from triolet.sampling_params import BeamSearchParams

END = 0


class Model:
    """A distribution over ``num_tokens`` tokens after each prefix, random but always the same."""

    def __init__(self, seed: int, num_tokens: int = 4) -> None:
        self._seed = seed
        self._num_tokens = num_tokens

    def logprobs(self, prefix: tuple[int, ...]) -> list[float]:
        numbers = random.Random(f"{self._seed} {prefix}")
        weights = [numbers.random() ** 3 + 1e-3 for _ in range(self._num_tokens)]
        return [math.log(weight / sum(weights)) for weight in weights]

    def candidates(self, prefix: tuple[int, ...], count: int) -> TokenLogprobs:
        """As the engine gives them: the sampled token, then the likeliest ones."""
        logprobs = self.logprobs(prefix)
        top = sorted(range(self._num_tokens), key=lambda token: -logprobs[token])[:count]
        token_ids = (self._num_tokens - 1, *top)
        return TokenLogprobs(token_ids, tuple(logprobs[token] for token in token_ids), 1)


def run(model: Model, search: BeamSearch) -> list[Beam]:
    while search.live:
        count = search.num_candidates
        search.advance([model.candidates(beam.token_ids, count) for beam in search.live])
    return search.best()


def every_continuation(model: Model, search: BeamSearch, ends: frozenset[int], length: int) -> list[Beam]:
    """All that end, or have the full length, best first."""
    beams = []
    for token_ids in itertools.product(range(4), repeat=length):
        end = next((index + 1 for index, token in enumerate(token_ids) if token in ends), length)
        prefix = token_ids[:end]
        logprob = sum(model.logprobs(prefix[:index])[token] for index, token in enumerate(prefix))
        beams.append(Beam(prefix, logprob, prefix[-1] in ends))
    unique = {beam.token_ids: beam for beam in beams}
    return sorted(unique.values(), key=search.score, reverse=True)


@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 2.0, -0.5])
@pytest.mark.parametrize("ends", [frozenset({END}), frozenset({END, 2}), frozenset()], ids=str)
def test_with_room_for_all_it_finds_the_best_there_are(ends: frozenset[int], length_penalty: float) -> None:
    for seed in range(8):
        model = Model(seed)
        params = BeamSearchParams(beam_width=64, max_tokens=4, length_penalty=length_penalty)
        search = BeamSearch(params, ends)
        best = run(model, search)
        expected = every_continuation(model, search, ends, 4)[:64]
        assert [beam.token_ids for beam in best] == [beam.token_ids for beam in expected]
        for found, true in zip(best, expected, strict=True):
            assert found.cumulative_logprob == pytest.approx(true.cumulative_logprob)
            assert found.has_ended is true.has_ended


def plain_search(model: Model, width: int, length: int, ends: frozenset[int]) -> list[tuple[int, ...]]:
    """By the plainest means: nothing is left out and nothing ends early; scores with penalty 1."""
    live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    ended: list[tuple[float, tuple[int, ...]]] = []
    for _ in range(length):
        grown = [
            (logprob + more, (*prefix, token))
            for logprob, prefix in live
            for token, more in enumerate(model.logprobs(prefix))
        ]
        ended += [entry for entry in grown if entry[1][-1] in ends]
        live = sorted((entry for entry in grown if entry[1][-1] not in ends), reverse=True)[:width]
    final = sorted(ended + live, key=lambda entry: entry[0] / len(entry[1]), reverse=True)
    return [token_ids for _, token_ids in final[:width]]


@pytest.mark.parametrize("width", [1, 2, 3])
def test_ending_early_and_asking_for_few_candidates_change_nothing(width: int) -> None:
    num_early = 0
    for seed in range(40):
        model = Model(seed)
        search = BeamSearch(BeamSearchParams(beam_width=width, max_tokens=7), frozenset({END}))
        best = run(model, search)
        assert [beam.token_ids for beam in best] == plain_search(model, width, 7, frozenset({END}))
        num_early += max(len(beam.token_ids) for beam in best) < 7
    assert num_early >= 5, "some were to end early"


def test_one_beam_is_greedy() -> None:
    model = Model(1)
    (best,) = run(model, BeamSearch(BeamSearchParams(beam_width=1, max_tokens=5), frozenset()))
    token_ids: tuple[int, ...] = ()
    while len(token_ids) < 5:
        logprobs = model.logprobs(token_ids)
        token_ids += (logprobs.index(max(logprobs)),)
    assert best.token_ids == token_ids


def test_what_is_impossible_is_no_candidate() -> None:
    search = BeamSearch(BeamSearchParams(beam_width=2, max_tokens=1), frozenset())
    search.advance([TokenLogprobs((3, 3, 1), (0.0, 0.0, -math.inf), 1)])
    assert search.best() == [Beam((3,), 0.0)]


def test_a_search_that_is_cut_has_what_it_had() -> None:
    search = BeamSearch(BeamSearchParams(beam_width=2, max_tokens=9), frozenset())
    search.cut()
    assert search.best() == [Beam()]
    assert search.live == []
