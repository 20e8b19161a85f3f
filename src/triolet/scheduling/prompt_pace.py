"""How many tokens of a long prompt go into a step, so that the others' tokens do not wait for it.

A step in which others generate is to take at most ``MAX_SLOWDOWN`` times as long as without the prompt. How
long steps take is learnt from those that have run: those without prompts, and those with, by how far into
its sequence the prompt was, for a token sees all those before it and costs the more.

This module has no clock and knows nothing of sequences or of their order.
"""

from __future__ import annotations

from triolet.plan import PlanRow, StepPlan

__all__ = ["MIN_CHUNK", "PromptPace"]

MAX_SLOWDOWN = 2.5
MIN_CHUNK = 8
"""So much of a long prompt goes into every step, so that it ends."""
POSITIONS_PER_ENTRY = 256
RATE = 1 / 3


class PromptPace:
    """Seconds that a step without prompts takes, and a token of a prompt by its position."""

    def __init__(self) -> None:
        self._decode_seconds: float | None = None
        self._token_seconds: dict[int, float] = {}

    @property
    def allowance(self) -> float | None:
        """Seconds by which long prompts may prolong a step in which others generate; None: not known yet."""
        return None if self._decode_seconds is None else (MAX_SLOWDOWN - 1) * self._decode_seconds

    def token_seconds(self, position: int) -> float:
        """What a token of a prompt costs there, or where one was last before that; 0.0 if not known yet."""
        entries = [entry for entry in self._token_seconds if entry <= position // POSITIONS_PER_ENTRY]
        return self._token_seconds[max(entries)] if entries else 0.0

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """A step took so long."""
        prompts = [row for row in plan.rows if _is_prompt(row)]
        if not prompts:
            self._decode_seconds = _moved(self._decode_seconds, seconds)
            return
        if len(prompts) < len(plan.rows):
            seconds -= self._decode_seconds or 0.0
        per_token = max(0.0, seconds) / sum(row.num_tokens for row in prompts)
        for row in prompts:
            entry = row.start // POSITIONS_PER_ENTRY
            self._token_seconds[entry] = _moved(self._token_seconds.get(entry), per_token)


def _is_prompt(row: PlanRow) -> bool:
    return row.num_tokens - row.num_draft_tokens > 1


def _moved(average: float | None, value: float) -> float:
    return value if average is None else average + RATE * (value - average)
