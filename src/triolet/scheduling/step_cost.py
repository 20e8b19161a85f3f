"""What a step costs, from how long steps have taken: a fixed part, and parts for sequences and for guesses.

Least squares over the steps so far, older ones counting for less, so that the estimate follows the machine's
load and the length of the contexts. Few steps, or steps all of one size, tell little: the estimate is then
near what is usual. This module has no clock and knows nothing of what a step is.
"""

from __future__ import annotations

__all__ = ["StepCost"]

USUAL_RATIO = 10.0
"""The fixed part in tokens, careful: where the CPU is slow at multiplying. With matrix tiles it is 30."""
USUAL_WEIGHT = 16.0
"""What is usual counts for as much as so many steps whose sizes have a variance of 1."""
DECAY = 0.99
MAX_OUTLIER = 3.0
MIN_SHARE = 0.1


class StepCost:
    """Estimates seconds ≈ fixed + per sequence × sequences + per guess × guesses."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._mean_sequences = 0.0
        self._mean_guesses = 0.0
        self._mean_seconds = 0.0
        self._variance_of_sequences = 0.0
        self._variance_of_guesses = 0.0
        self._covariance = 0.0
        self._seconds_by_sequences = 0.0
        self._seconds_by_guesses = 0.0

    def guess_in_tokens(self, num_sequences: int) -> float:
        """What a guess costs, in tokens that a step of so many sequences without guesses gives as quickly."""
        if not self._mean_seconds:
            return num_sequences / (USUAL_RATIO + num_sequences)
        per_sequence, per_guess = self._slopes()
        seconds = self._mean_seconds - per_guess * self._mean_guesses
        seconds += per_sequence * (num_sequences - self._mean_sequences)
        return max(0.0, per_guess) * num_sequences / max(seconds, MIN_SHARE * self._mean_seconds)

    def _slopes(self) -> tuple[float, float]:
        """Seconds that another sequence, and another guess, add."""
        strength = USUAL_WEIGHT / self._weight
        usual = self._mean_seconds / (USUAL_RATIO + self._mean_sequences + self._mean_guesses)
        of_sequences, of_guesses = (
            self._variance_of_sequences + strength,
            self._variance_of_guesses + strength,
        )
        by_sequences = self._seconds_by_sequences + strength * usual
        by_guesses = self._seconds_by_guesses + strength * usual
        determinant = of_sequences * of_guesses - self._covariance**2
        per_sequence = (by_sequences * of_guesses - by_guesses * self._covariance) / determinant
        per_guess = (by_guesses * of_sequences - by_sequences * self._covariance) / determinant
        return per_sequence, per_guess

    def observe(self, num_sequences: int, num_guesses: int, seconds: float) -> None:
        """A step of so many took so long; one that was held up counts as only somewhat long."""
        if self._weight > 1:
            seconds = min(seconds, MAX_OUTLIER * self._mean_seconds)
        self._weight = DECAY * self._weight + 1
        rate = 1 / self._weight
        off_sequences = num_sequences - self._mean_sequences
        off_guesses = num_guesses - self._mean_guesses
        off_seconds = seconds - self._mean_seconds
        self._mean_sequences += rate * off_sequences
        self._mean_guesses += rate * off_guesses
        self._mean_seconds += rate * off_seconds
        keep = 1 - rate
        self._variance_of_sequences = keep * (self._variance_of_sequences + rate * off_sequences**2)
        self._variance_of_guesses = keep * (self._variance_of_guesses + rate * off_guesses**2)
        self._covariance = keep * (self._covariance + rate * off_sequences * off_guesses)
        self._seconds_by_sequences = keep * (self._seconds_by_sequences + rate * off_sequences * off_seconds)
        self._seconds_by_guesses = keep * (self._seconds_by_guesses + rate * off_guesses * off_seconds)
