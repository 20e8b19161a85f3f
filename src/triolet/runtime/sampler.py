"""From hidden states to token ids, each row as its request asks for.

In this order, at each position: the request's adjustments (:mod:`triolet.runtime.adjustments`), its grammar,
temperature, top-k, top-p, min-p, the draw. Where it makes no difference the grammar comes last
(:mod:`triolet.runtime.grammar_draws`). A token is a function of its logits, its request, what the
sequence has said, its seed and its position: never of the rows beside it. Where tokens are equally likely,
the lowest id comes first.

A row with draft tokens is sampled after each of them as if they were its own, and ends after the first that
is another one than was guessed: what comes out is what would have come out without guesses, one by one.

Logits are made of a few rows at a time, so that memory is bounded. What is done to single rows before a token
is drawn, and told of them after, is done by numpy: on a CPU that is several times as fast as torch, whose
operations on short rows cost more to start than to do. Logits on another device are brought over for that.
This module knows nothing of models, caches or scheduling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from triolet.args import LogprobsMode
from triolet.plan import PlanRow
from triolet.request import Request, TokenLogprobs
from triolet.runtime.adjuster import NOT_FINITE, Adjuster, draft_of
from triolet.runtime.constraints import Constraints
from triolet.runtime.draw_settings import draw_settings
from triolet.runtime.grammar_draws import draw_held
from triolet.runtime.grammar_masks import GrammarMasks
from triolet.runtime.logprobs import processed_logprobs, token_logprobs
from triolet_kernels.ops import MAX_DRAWN, DrawnTokens, Ops
from triolet_kernels.reference import ReferenceOps

__all__ = ["SampledRow", "Sampler", "are_only_drawn", "sampled_rows"]

Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRow:
    """What was sampled for a row: one token and one for each guess that was right, or an error.

    ``logprobs``: of each token, where asked for. With an ``error`` the tokens mean nothing; ``error_param``
    is the field of the request that is to blame, if one is.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    error: str | None = None
    error_param: str | None = None


class Sampler:
    """Samples the tokens of consecutive steps, over slots."""

    def __init__(
        self,
        vocab_size: int,
        *,
        ops: Ops | None = None,
        logprobs_mode: LogprobsMode = "raw",
        constraints: Constraints | None = None,
    ) -> None:
        """``ops`` None draws with the reference implementation."""
        self._ops = ops or ReferenceOps()
        self._is_raw = logprobs_mode == "raw"
        self.adjuster = Adjuster(vocab_size)
        self._grammars = GrammarMasks(vocab_size, constraints)

    def begin(self, rows: Sequence[PlanRow]) -> None:
        """Take note of the sequences that are new in their slots, in the rows of a plan."""
        self.adjuster.begin(rows)
        self._grammars.begin(rows)

    def sample(
        self, hidden: Tensor, rows: Sequence[PlanRow], logits_of: Callable[[Tensor], Tensor]
    ) -> list[SampledRow]:
        """Sample after each of ``rows``, which have their draft tokens.

        ``hidden (P, hidden)``: of each row, its last ``num_draft_tokens`` + 1 positions. ``logits_of`` makes
        logits ``(…, V)`` float32 of some of them, which are overwritten. A logit of minus infinity is a
        probability of zero; NaN, plus infinity or no finite logit is an error of that row alone.
        """
        sampled: list[SampledRow] = []
        first = 0
        for chunk in _chunks(rows):
            end = first + sum(row.num_draft_tokens + 1 for row in chunk)
            logits = logits_of(hidden[first:end])
            if all(map(_is_plain, chunk)):
                sampled += self._sample_plain(logits, chunk)
            else:
                sampled += self._sample_chunk(logits, chunk)
            first = end
        return [
            entry if _is_plain(row) else self._commit(row, entry)
            for row, entry in zip(rows, sampled, strict=True)
        ]

    def _sample_plain(self, logits: Tensor, rows: Sequence[PlanRow]) -> list[SampledRow]:
        """Where nothing is asked for but to draw tokens, which is most of the time."""
        return sampled_rows(rows, self._ops.draw(logits, draw_settings(rows)))

    def _commit(self, row: PlanRow, sampled: SampledRow) -> SampledRow:
        if sampled.error is not None:
            return sampled
        try:
            self.adjuster.commit(row, sampled.token_ids)
            error = self._grammars.commit(row, sampled.token_ids)
        except Exception as exc:
            # Not passed on: rows before this one are committed, so the step must not be run again.
            return SampledRow(token_ids=(0,), error=f"{type(exc).__name__}: {exc}")
        return sampled if error is None else _failure_of_grammar(error)

    def _sample_chunk(self, logits: Tensor, rows: Sequence[PlanRow]) -> list[SampledRow]:
        requests = [row.request for row in rows for _ in range(row.num_draft_tokens + 1)]
        if any(_looks_at_logits(request) for request in requests):
            logits = logits.cpu()
        # On another device this array is not there, and nobody looks at it.
        array = logits.numpy() if logits.device.type == "cpu" else None
        raw: dict[int, NDArray[np.float32]] = {}
        errors: dict[int, str] = {}
        if array is not None:
            raw = self._keep_raw(array, requests)
            errors = self.adjuster.adjust(array, rows)
        drawn, held = draw_held(self._grammars, self._ops, logits, rows, is_processed=not self._is_raw)
        is_finite = np.isfinite(drawn.highest).tolist()
        step = _Step(array, raw, drawn, drawn.token_ids.tolist(), is_finite, errors, held)
        sampled: list[SampledRow] = []
        first = 0
        for row in rows:
            sampled.append(self._finish_row(step, row, first))
            first += row.num_draft_tokens + 1
        return sampled

    def _keep_raw(self, logits: Logits, requests: Sequence[Request]) -> dict[int, NDArray[np.float32]]:
        """Copies of the rows whose log-probabilities are to be those before adjustments."""
        return {
            index: logits[index].copy()
            for index, request in enumerate(requests)
            if self._is_raw and request.num_logprobs is not None and request.adjustments is not None
        }

    def _finish_row(self, step: _Step, row: PlanRow, first: int) -> SampledRow:
        """Keep a row's draft tokens as far as they are what was sampled, and the token after them."""
        token_ids: list[int] = []
        for offset, guess in enumerate((*draft_of(row), None)):
            failure = self._failure_at(step, row, first + offset)
            if failure is not None:
                # Tokens before it would have come out one by one; the error will come up again after them.
                if not token_ids:
                    return failure
                break
            token_ids.append(step.token_ids[first + offset])
            # After an end, though it was guessed, a grammar has nothing more to say.
            if token_ids[-1] != guess or guess in row.request.stop_token_ids:
                break
        if row.request.num_logprobs is None:
            return SampledRow(token_ids=tuple(token_ids))
        logprobs = tuple(
            self._logprobs_at(step, row.request, first + offset, token_id)
            for offset, token_id in enumerate(token_ids)
        )
        return SampledRow(token_ids=tuple(token_ids), logprobs=logprobs)

    def _failure_at(self, step: _Step, row: PlanRow, position: int) -> SampledRow | None:
        if position in step.errors:
            return SampledRow(token_ids=(0,), error=step.errors[position])
        if position in step.grammar_errors:
            return _failure_of_grammar(step.grammar_errors[position])
        return None if step.is_finite[position] else self.without_token(row, step.drawn.highest[position])

    def without_token(self, row: PlanRow, highest: np.float32) -> SampledRow:
        """What becomes of a row whose ``highest`` logit is not finite."""
        if highest == -np.inf and row.request.adjustments is not None:
            options = self.adjuster.forbidding_options(row)
            if options:
                forbidden = f"no token is left to choose from: {' and '.join(options)} forbid every one"
                return SampledRow(token_ids=(0,), error=f"{options[0]}: {forbidden}", error_param=options[0])
        return SampledRow(token_ids=(0,), error=NOT_FINITE)

    def _logprobs_at(self, step: _Step, request: Request, position: int, token_id: int) -> TokenLogprobs:
        assert step.logits is not None
        assert request.num_logprobs is not None
        if self._is_raw:
            row = step.raw.get(position, step.logits[position])
            highest = row.max() if position in step.raw else step.drawn.highest[position]
            return token_logprobs(row, highest, token_id, request.num_logprobs)
        return processed_logprobs(
            step.logits[position],
            step.drawn.highest[position],
            token_id,
            request.num_logprobs,
            temperature=request.temperature or 1.0,
            num_kept=int(step.drawn.num_kept[position]),
        )


@dataclass(frozen=True, slots=True)
class _Step:
    """What is known of the positions of a chunk: logits after adjustments, those before (``raw``, where they
    are wanted and differ), what was drawn, as arrays and partly as lists as well, and what is wrong."""

    logits: Logits | None
    raw: dict[int, NDArray[np.float32]]
    drawn: DrawnTokens
    token_ids: list[int]
    is_finite: list[bool]
    errors: dict[int, str]
    grammar_errors: dict[int, str]


def _failure_of_grammar(error: str) -> SampledRow:
    """A grammar that cannot go on is the caller's to make simpler."""
    return SampledRow(token_ids=(0,), error=error, error_param="structured_outputs")


def _chunks(rows: Sequence[PlanRow]) -> Iterator[Sequence[PlanRow]]:
    """Runs of rows with at most ``MAX_DRAWN`` positions, or of one row."""
    chunk: list[PlanRow] = []
    num_positions = 0
    for row in rows:
        num_positions += row.num_draft_tokens + 1
        if chunk and num_positions > MAX_DRAWN:
            yield chunk
            chunk, num_positions = [], row.num_draft_tokens + 1
        chunk.append(row)
    if chunk:
        yield chunk


def are_only_drawn(rows: Sequence[PlanRow]) -> bool:
    """Whether nothing is asked for after a step over ``rows`` but to draw tokens, and not too many."""
    return sum(row.num_draft_tokens + 1 for row in rows) <= MAX_DRAWN and all(
        _is_plain(row) and row.request.num_prompt_logprobs is None for row in rows
    )


def sampled_rows(rows: Sequence[PlanRow], drawn: DrawnTokens) -> list[SampledRow]:
    """What becomes of rows of which nothing was asked but to draw a token after each of their positions."""
    token_ids, is_finite = drawn.token_ids.tolist(), np.isfinite(drawn.highest).tolist()
    sampled: list[SampledRow] = []
    first = 0
    for row in rows:
        last = first
        if row.num_draft_tokens:
            last += _num_right(draft_of(row), token_ids[first:], is_finite[first:])
        if is_finite[first]:
            sampled.append(SampledRow(token_ids=tuple(token_ids[first : last + 1])))
        else:
            sampled.append(SampledRow(token_ids=(0,), error=NOT_FINITE))
        first += row.num_draft_tokens + 1
    return sampled


def _num_right(draft: Sequence[int], token_ids: Sequence[int], is_finite: Sequence[bool]) -> int:
    """How many guesses are what was drawn, up to the first after which nothing could be."""
    for index, guess in enumerate(draft):
        if token_ids[index] != guess or not is_finite[index + 1]:
            return index
    return len(draft)


def _is_plain(row: PlanRow) -> bool:
    """Whether a row's tokens are to be drawn, and nothing else is to be done about them."""
    return not _looks_at_logits(row.request)


def _looks_at_logits(request: Request) -> bool:
    """Whether more is asked for than to draw from the logits."""
    return request.num_logprobs is not None or request.adjustments is not None
