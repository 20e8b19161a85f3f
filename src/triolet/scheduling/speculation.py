"""How far to guess ahead: as far as it pays, for each sequence by itself.

A guess adds a row to a step, which takes a little longer (:mod:`triolet.scheduling.step_cost`); the same time
would give so many tokens without guesses. It pays where the chance that it is kept is above that. The j-th
guess in a row is kept only if all before it are, so its chance is the product of theirs, each as
:mod:`triolet.scheduling.acceptance` knows it. Guesses of a draft model cost its own steps as well.

Each sequence learns by itself how often its guesses are right, and starts from what all together have seen.
What is not worth it is slowly forgotten, and so tried again now and then. Kernels compute rows in groups: the
first row of another group costs as much as many more, so guesses fill up the group that the sequences
themselves began.

This module knows nothing of sequences, blocks or a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from triolet.args import Speculation
from triolet.plan import StepPlan
from triolet.scheduling.acceptance import Acceptance
from triolet.scheduling.drafting import Drafter, NGramDrafter, SuffixDrafter
from triolet.scheduling.step_cost import StepCost

__all__ = ["NO_DRAFT", "Draft", "SequenceSpeculation", "Speculator"]

DRAFT_MODEL_COST = 0.25
"""What a token of a draft model costs, as a share of the model's own step."""
MIN_BREAK_EVEN = 0.08
"""The time of a guess gives more tokens than without guesses: those of the guesses before it."""
SEQUENCE_RATE = 1 / 8
GLOBAL_RATE = 1 / 64
FIRST_GAIN = 0.2
MIN_GAIN = 0.03
"""In tokens: what looking for a guess costs by itself, in a large batch."""
GAIN_RATE = 1 / 32
PAUSE = 16


@dataclass(frozen=True, slots=True)
class Draft:
    """Guesses at the next ``num_tokens`` tokens; without ``token_ids`` where the runner is to make them."""

    num_tokens: int = 0
    token_ids: tuple[int, ...] = ()


NO_DRAFT = Draft()


@dataclass(slots=True)
class SequenceSpeculation:
    """What one sequence has learnt about guessing. ``drafter`` None: the runner's draft model guesses.

    ``gain``: tokens that looking for a guess has gained lately, each time, less what the guesses cost.
    ``num_skipped``: steps since the last look. ``num_matched``, ``cost``: of the last draft, over how many
    tokens it matched, and what a guess cost then, in tokens.
    """

    drafter: Drafter | None
    acceptance: Acceptance
    gain: float = FIRST_GAIN
    num_skipped: int = 0
    num_matched: int = 0
    cost: float = 0.0

    def propose(self, token_ids: Sequence[int], limit: int, break_even: float) -> Draft:
        """Guess at up to ``limit`` tokens after ``token_ids``, those that are worth it (see the module)."""
        if limit < 1 or not self.is_due:
            self.skip()
            return NO_DRAFT
        self.num_skipped = 0
        guess: tuple[int, ...] = ()
        if self.drafter is not None:
            guess, self.num_matched = self.drafter.propose(token_ids, limit)
            limit = len(guess)
        length = self.acceptance.length(self.num_matched, limit, break_even)
        if length:
            self.cost = break_even
            return Draft(length, guess[:length])
        if limit:
            self.acceptance.decline(self.num_matched)
        self._learn_gain(0.0)
        return NO_DRAFT

    @property
    def is_due(self) -> bool:
        """Whether to look for a guess in the next step: while that gains something, and else now and then."""
        return self.gain >= MIN_GAIN or self.num_skipped + 1 >= PAUSE

    def skip(self) -> None:
        """A step goes by without a look."""
        self.num_skipped += 1

    def record(self, num_proposed: int, num_accepted: int) -> None:
        """So many of the guesses in a step were right."""
        self.acceptance.record(self.num_matched, num_proposed, num_accepted, SEQUENCE_RATE)
        self._learn_gain(num_accepted - num_proposed * self.cost)

    def _learn_gain(self, num_tokens: float) -> None:
        self.gain += GAIN_RATE * (num_tokens - self.gain)


class Speculator:
    """Starts the guessing of each sequence and keeps the totals.

    ``row_group``: so many rows of a step are computed together; None where that makes no difference.
    """

    def __init__(self, kind: Speculation, max_length: int, row_group: int | None = None) -> None:
        self.kind = kind
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self._max_length = max_length
        self._row_group = row_group
        self._acceptance = Acceptance(is_looked_up=kind != "draft")
        self._gain = FIRST_GAIN
        self._cost = StepCost()

    def start(self) -> SequenceSpeculation | None:
        """For a new sequence; None where nothing is guessed."""
        if self.kind == "off":
            return None
        drafter: Drafter | None = None
        if self.kind != "draft":
            drafter = NGramDrafter() if self.kind == "ngram" else SuffixDrafter()
        return SequenceSpeculation(drafter, self._acceptance.copy(), self._gain)

    def break_even(self, num_sequences: int) -> float:
        """The chance of being kept above which a guess pays in a step of so many sequences."""
        own_cost = DRAFT_MODEL_COST if self.kind == "draft" else 0.0
        return max(self._cost.guess_in_tokens(num_sequences), MIN_BREAK_EVEN) + own_cost

    def room(self, num_sequences: int) -> int:
        """The most guesses in a step of so many sequences."""
        if self._row_group is None:
            return num_sequences * self._max_length
        return min(num_sequences * self._max_length, -num_sequences % self._row_group)

    def propose(
        self, speculation: SequenceSpeculation, token_ids: Sequence[int], limit: int, break_even: float
    ) -> Draft:
        """See :meth:`SequenceSpeculation.propose`."""
        draft = speculation.propose(token_ids, min(limit, self._max_length), break_even)
        if not draft.num_tokens:
            self._gain += GLOBAL_RATE * (speculation.gain - self._gain)
        return draft

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """A step took so long. Only those without prompts tell what a guess costs."""
        num_guesses = sum(row.num_draft_tokens for row in plan.rows)
        if plan.num_tokens == len(plan.rows) + num_guesses:
            self._cost.observe(len(plan.rows), num_guesses, seconds)

    def record(self, speculation: SequenceSpeculation, num_proposed: int, num_accepted: int) -> None:
        """So many of the guesses for a sequence in a step were right."""
        speculation.record(num_proposed, num_accepted)
        self._acceptance.record(speculation.num_matched, num_proposed, num_accepted, GLOBAL_RATE)
        self._gain += GLOBAL_RATE * (speculation.gain - self._gain)
        self.num_draft_tokens += num_proposed
        self.num_accepted_tokens += num_accepted
