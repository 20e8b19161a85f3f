"""How far to guess ahead: as far as it pays, for each sequence by itself.

A step costs a fixed part and a part for each token (see :mod:`triolet.scheduling.step_cost`). So a step over
N tokens gets cheaper by the token with each one added, and a guess pays where the chance that it is kept is
above **N ÷ (N + fixed part in tokens)**: a tenth or so for one sequence alone, nearly one in a large batch.
Guesses of a draft model cost its own steps as well.

If each guess is right with chance p, the j-th in a row is kept with chance pʲ; so guessing goes as far as pʲ
is above the break-even. Each sequence keeps its own running estimate of p: its guesses get longer as they are
right, shorter as they are wrong. Where not even the first pays, one is tried every few steps, twice as many
steps later after each failure, and at once again after a success. A new sequence starts from what all
together have seen, so that a workload without repetition soon costs next to nothing.

This module knows nothing of sequences, blocks or a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from triolet.args import Speculation
from triolet.plan import StepPlan
from triolet.scheduling.drafting import Drafter, NGramDrafter, SuffixDrafter
from triolet.scheduling.step_cost import StepCost

__all__ = ["NO_DRAFT", "Draft", "SequenceSpeculation", "Speculator"]

DRAFT_MODEL_COST = 0.25
"""What a token of a draft model costs, as a share of the model's own step."""
FIRST_ACCEPTANCE = 0.8
MAX_ACCEPTANCE = 0.999
SEQUENCE_RATE = 1 / 8
GLOBAL_RATE = 1 / 64
MIN_PAUSE = 8
MAX_PAUSE = 64
"""Steps: a guess in 64 costs less than 1 %, and repetition that begins late is noticed soon enough."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Guesses at the next ``num_tokens`` tokens; without ``token_ids`` where the runner is to make them."""

    num_tokens: int = 0
    token_ids: tuple[int, ...] = ()


NO_DRAFT = Draft()


@dataclass(slots=True)
class SequenceSpeculation:
    """What one sequence has learnt about guessing. ``drafter`` None: the runner's draft model guesses.

    ``acceptance``: running share of right ones among the guesses whose predecessors were right, 0 to 1.
    """

    drafter: Drafter | None
    max_length: int
    acceptance: float
    pause: int = MIN_PAUSE
    num_paused: int = 0

    def propose(self, token_ids: Sequence[int], limit: int, break_even: float) -> Draft:
        """Guess at up to ``limit`` tokens after ``token_ids``, those that are worth it (see the module)."""
        if not self.is_due(break_even):
            self.skip()
            return NO_DRAFT
        length = min(limit, max(1, self.length_for(break_even)))
        if length < 1:
            return NO_DRAFT
        if self.drafter is None:
            return Draft(length)
        draft = self.drafter.propose(token_ids, length)
        return Draft(len(draft), draft)

    def is_due(self, break_even: float) -> bool:
        """Whether the next step is to have a guess, because it pays or to see whether it would."""
        return self.num_paused + 1 >= self.pause or self.length_for(break_even) > 0

    def skip(self) -> None:
        """A step goes by without a guess."""
        self.num_paused += 1

    def length_for(self, break_even: float) -> int:
        """How many guesses in a row are each kept with a chance of at least ``break_even``."""
        if self.acceptance < break_even:
            return 0
        longest = log(break_even) / log(min(self.acceptance, MAX_ACCEPTANCE))
        return min(int(longest), self.max_length)

    def record(self, num_proposed: int, num_accepted: int) -> None:
        """So many of the guesses in a step were right."""
        self.acceptance = _update(self.acceptance, SEQUENCE_RATE, num_proposed, num_accepted)
        self.num_paused = 0
        self.pause = 1 if num_accepted else min(max(MIN_PAUSE, 2 * self.pause), MAX_PAUSE)


class Speculator:
    """Starts the guessing of each sequence and keeps the totals."""

    def __init__(self, kind: Speculation, max_length: int) -> None:
        self.kind = kind
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self._max_length = max_length
        self._acceptance = FIRST_ACCEPTANCE
        self._cost = StepCost()

    def start(self) -> SequenceSpeculation | None:
        """For a new sequence; None where nothing is guessed."""
        if self.kind == "off":
            return None
        drafter: Drafter | None = None
        if self.kind != "draft":
            drafter = NGramDrafter() if self.kind == "ngram" else SuffixDrafter()
        return SequenceSpeculation(drafter, self._max_length, self._acceptance)

    def break_even(self, num_tokens: int) -> float:
        """The share of right guesses above which they pay in a step over ``num_tokens`` other tokens."""
        own_cost = DRAFT_MODEL_COST if self.kind == "draft" else 0.0
        return num_tokens / (num_tokens + self._cost.fixed_in_tokens) + own_cost

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """A step took so long. Only those without prompts tell what a guess costs."""
        if all(row.num_tokens == row.num_draft_tokens + 1 for row in plan.rows):
            self._cost.observe(plan.num_tokens, seconds)

    def record(self, speculation: SequenceSpeculation, num_proposed: int, num_accepted: int) -> None:
        """So many of the guesses for a sequence in a step were right."""
        speculation.record(num_proposed, num_accepted)
        self._acceptance = _update(self._acceptance, GLOBAL_RATE, num_proposed, num_accepted)
        self.num_draft_tokens += num_proposed
        self.num_accepted_tokens += num_accepted


def _update(acceptance: float, rate: float, num_proposed: int, num_accepted: int) -> float:
    """The running share after so many right guesses and, if they were not all, a wrong one."""
    acceptance = 1 - (1 - acceptance) * (1 - rate) ** num_accepted
    return acceptance if num_accepted == num_proposed else acceptance * (1 - rate)
