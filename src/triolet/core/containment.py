"""A step that fails is run again in halves, until it is known which of its rows it failed for.

Rows of a plan do not depend on each other, and running one again writes the same keys and values to the same
places, so what the others get is what they would have got. A runner must keep this up: what it remembers of
a sequence changes only when a step has succeeded.

This module knows neither the scheduler nor what a runner is made of.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Sequence

from triolet.errors import EngineDeadError
from triolet.plan import PlanRow, StepPlan, StepResult
from triolet.request import TokenLogprobs

__all__ = ["describe_failure", "does_work", "execute_contained"]

SPARE_TRIES = 8

OUT_OF_MEMORY_NAMES = frozenset({"OutOfMemoryError", "MemoryError"})
OUT_OF_MEMORY_PHRASES = ("out of memory", "can't allocate memory", "DefaultCPUAllocator")

Execute = Callable[[StepPlan], StepResult]

logger = logging.getLogger("triolet.core")


def execute_contained(execute: Execute, plan: StepPlan) -> tuple[StepResult, Exception | None]:
    """Run a plan; rows for which it fails are in the result's ``errors``, the others have their tokens.

    The exception is None unless no row at all succeeded. With n rows and one guilty, at most 1 + 2 log₂ n
    runs are made; with g guilty, at most that many for each. A failure that every part has is given up
    after 2 log₂ n and a few: the device has failed, not a request. EngineDeadError is no row's failure.
    """
    try:
        return execute(plan), None
    except EngineDeadError:
        raise
    except Exception as exc:
        search = _Search(execute, plan)
        search.narrow(0, len(plan.rows), _forgetful(exc))
    _log(plan, search)
    failure = next(iter(search.failures.values())) if search.failures and not search.has_results else None
    for error in search.failures.values():
        error.__traceback__ = None  # it leads to this frame, and so back to the error
    return search.result(), failure


def does_work(probe: Callable[[], None]) -> bool:
    """Whether a device that failed with all requests it was given can compute anything at all."""
    try:
        probe()
    except EngineDeadError:
        raise
    except Exception as exc:
        logger.error("the device cannot compute a token", exc_info=_forgetful(exc))
        return False
    return True


def describe_failure(error: Exception) -> str:
    """What the caller of the request is told."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    is_out_of_memory = type(error).__name__ in OUT_OF_MEMORY_NAMES or any(
        phrase in str(error) for phrase in OUT_OF_MEMORY_PHRASES
    )
    return f"out of memory while computing this request: {text}" if is_out_of_memory else text


class _Search:
    """Finds the guilty rows of a plan that failed, by halves."""

    def __init__(self, execute: Execute, plan: StepPlan) -> None:
        self._execute = execute
        self._plan = plan
        self._num_tries_left = 2 * len(plan.rows).bit_length() + SPARE_TRIES
        self._results: list[tuple[int, StepResult]] = []
        self.failures: dict[int, Exception] = {}

    @property
    def has_results(self) -> bool:
        return bool(self._results)

    def narrow(self, first: int, end: int, error: Exception) -> None:
        """Settle the rows from ``first`` to before ``end``, which failed together with ``error``."""
        is_hopeless = not self.has_results and self._num_tries_left <= 0
        if end - first == 1 or is_hopeless:
            self.failures.update(dict.fromkeys(range(first, end), error))
            return
        middle = (first + end) // 2
        halves = ((first, middle), (middle, end))
        # Both before either is looked into: that one of them succeeds tells that the device works.
        errors = [self._try(*half) for half in halves]
        for half, error_of_half in zip(halves, errors, strict=True):
            if error_of_half is not None:
                self.narrow(*half, error_of_half)

    def _try(self, first: int, end: int) -> Exception | None:
        self._num_tries_left -= 1
        try:
            result = self._execute(StepPlan(step_id=self._plan.step_id, rows=self._plan.rows[first:end]))
        except EngineDeadError:
            raise
        except Exception as exc:
            return _forgetful(exc)
        self._results.append((first, result))
        return None

    def result(self) -> StepResult:
        """The whole plan's result, put together from those of its parts."""
        samples: dict[int, tuple[tuple[int, ...], tuple[TokenLogprobs, ...] | None]] = {}
        errors = {row: describe_failure(error) for row, error in self.failures.items()}
        error_params: dict[int, str] = {}
        prompt_logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}
        for first, part in self._results:
            rows = _sampled(self._plan.rows, first)
            samples.update(zip(rows, zip(part.token_ids, part.logprobs, strict=True), strict=False))
            errors |= {first + row: text for row, text in part.errors.items()}
            error_params |= {first + row: param for row, param in part.error_params.items()}
            prompt_logprobs |= {first + row: entries for row, entries in part.prompt_logprobs.items()}
        in_order = [samples.get(row, ((0,), None)) for row in _sampled(self._plan.rows, 0)]
        return StepResult(
            step_id=self._plan.step_id,
            token_ids=tuple(token_ids for token_ids, _ in in_order),
            logprobs=tuple(logprobs for _, logprobs in in_order),
            errors=errors,
            error_params=error_params,
            prompt_logprobs=prompt_logprobs,
        )


def _log(plan: StepPlan, search: _Search) -> None:
    if search.failures and not search.has_results:
        error = next(iter(search.failures.values()))
        logger.error("step %d failed for all its %d rows", plan.step_id, len(plan.rows), exc_info=error)
        return
    for row, error in search.failures.items():
        request_id = plan.rows[row].request.request_id
        logger.error("step %d failed for request %d", plan.step_id, request_id, exc_info=error)


def _sampled(rows: Sequence[PlanRow], first: int) -> list[int]:
    return [index for index in range(first, len(rows)) if rows[index].is_sampled]


def _forgetful(error: Exception) -> Exception:
    """Whoever keeps the error, or its log record, is not to keep the step's tensors and the model."""
    chained: BaseException | None = error
    while chained is not None:
        traceback.clear_frames(chained.__traceback__)
        chained = chained.__cause__ or chained.__context__
    return error
