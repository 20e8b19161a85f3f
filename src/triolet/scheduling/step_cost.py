"""What a step costs, from how long steps have taken: a fixed part and a part for each token.

Least squares over the steps so far, older ones counting for less, so that the estimate follows the machine's
load and the length of the contexts. Few steps, or steps all of one size, tell little: the estimate is then
near what is usual. This module has no clock and knows nothing of what a step is.
"""

from __future__ import annotations

__all__ = ["StepCost"]

USUAL_RATIO = 10.0
"""That of SmolLM2-135M on two cores, where a step of 1 token takes 7 ms and one of 64 takes 45 ms."""
USUAL_WEIGHT = 16.0
"""What is usual counts for as much as so many steps whose sizes have a variance of 1."""
DECAY = 0.99
MIN_RATIO, MAX_RATIO = 0.5, 100.0
MAX_OUTLIER = 3.0


class StepCost:
    """Estimates seconds ≈ fixed + per token × tokens."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._mean_tokens = 0.0
        self._mean_seconds = 0.0
        self._variance = 0.0
        self._covariance = 0.0

    @property
    def fixed_in_tokens(self) -> float:
        """How many tokens' worth the fixed part is."""
        if not self._weight:
            return USUAL_RATIO
        usual = self._mean_seconds / (USUAL_RATIO + self._mean_tokens)
        strength = USUAL_WEIGHT / self._weight
        per_token = (self._covariance + strength * usual) / (self._variance + strength)
        fixed = self._mean_seconds - per_token * self._mean_tokens
        if fixed >= MAX_RATIO * per_token:
            return MAX_RATIO
        return max(fixed / per_token, MIN_RATIO)

    def observe(self, num_tokens: int, seconds: float) -> None:
        """A step over so many tokens took so long; one that was held up counts as only somewhat long."""
        if self._weight > 1:
            seconds = min(seconds, MAX_OUTLIER * self._mean_seconds)
        self._weight = DECAY * self._weight + 1
        rate = 1 / self._weight
        off_tokens, off_seconds = num_tokens - self._mean_tokens, seconds - self._mean_seconds
        self._mean_tokens += rate * off_tokens
        self._mean_seconds += rate * off_seconds
        self._variance = (1 - rate) * (self._variance + rate * off_tokens**2)
        self._covariance = (1 - rate) * (self._covariance + rate * off_tokens * off_seconds)
