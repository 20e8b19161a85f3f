"""The messages between the front end and the engine core: what is asked, and what comes back.

A front end turns text into a :class:`Request` (token ids only); the core answers with
:class:`TokenOutput`; the front end turns that into a :class:`RequestOutput` (text again).

This module knows neither torch nor an event loop nor any other part of the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from triolet.errors import InvalidRequestError

__all__ = [
    "CompletionOutput",
    "FinishReason",
    "Request",
    "RequestOutput",
    "RequestOutputKind",
    "RequestTimings",
    "SamplingParams",
    "TokenLogprobs",
    "TokenOutput",
]

MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_SEED = 2**63 - 1


class RequestOutputKind(StrEnum):
    """What each :class:`RequestOutput` of a request holds."""

    CUMULATIVE = "cumulative"
    """Everything so far, each time."""
    DELTA = "delta"
    """What is new since the last one."""
    FINAL_ONLY = "final_only"
    """One output, at the end."""


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    """End of sequence, a stop token or a stop string."""
    LENGTH = "length"
    """``max_tokens`` or the model's context is used up."""
    ABORT = "abort"
    """The caller left, or the engine was shut down."""
    ERROR = "error"
    """The request failed inside the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and when to stop. Values out of range raise :class:`InvalidRequestError`.

    ``temperature`` 0 is greedy. ``top_k`` 0 or -1, ``top_p`` 1 and ``min_p`` 0 are off. ``max_tokens``
    None means all that fits. ``seed`` None picks one at random; the seed used comes back in the output.
    ``logprobs`` is the number of most likely tokens reported beside the sampled one (0: just that one).
    ``stop`` and ``stop_token_ids`` are kept as tuples, whatever sequence they were.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else _as_tuple("stop", self.stop)
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", _as_tuple("stop_token_ids", self.stop_token_ids))
        object.__setattr__(self, "output_kind", _as_output_kind(self.output_kind))
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        self._check_numbers()
        self._check_stops()
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            _check_bool(name, getattr(self, name))

    def _check_numbers(self) -> None:
        _check_float("temperature", self.temperature, 0.0, 2.0)
        _check_float("top_p", self.top_p, 0.0, 1.0, is_low_open=True)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        _check_int("top_k", self.top_k, 0, 2**31 - 1)
        if self.seed is not None:
            _check_int("seed", self.seed, -MAX_SEED - 1, MAX_SEED)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 1, 2**31 - 1)
        if self.logprobs is not None:
            _check_int("logprobs", self.logprobs, 0, MAX_LOGPROBS)

    def _check_stops(self) -> None:
        if len(self.stop) > MAX_STOPS:
            raise InvalidRequestError(
                f"stop: at most {MAX_STOPS} stop strings, got {len(self.stop)}", param="stop"
            )
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise InvalidRequestError(
                    f"stop: each stop must be a non-empty string, got {text!r}", param="stop"
                )
        for token_id in self.stop_token_ids:
            _check_int("stop_token_ids", token_id, 0, 2**31 - 1)

    def replace(self, **changes: Any) -> SamplingParams:
        """A copy with some fields changed; the original is never touched."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the engine core is asked to do. Everything in it has been checked and resolved.

    ``request_id`` is an internal key, unique in the front end that made it: never a caller's id.
    ``stop_token_ids`` holds the end-of-sequence ids as well, unless they are to be ignored.
    """

    request_id: int
    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    seed: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop_token_ids: frozenset[int] = frozenset()
    num_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of probabilities at one position, from the model's raw distribution.

    The sampled token comes first, then the most likely ones in descending order.
    ``rank`` is the sampled token's place in the whole vocabulary, 1 for the most likely.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOutput:
    """What one step produced for one request. The one with a ``finish_reason`` is the last."""

    request_id: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: str | None = None
    num_cached_tokens: int = 0


@dataclass(slots=True, kw_only=True)
class CompletionOutput:
    """One generated continuation. ``stop_reason`` is the stop string or token id that ended it, if any."""

    index: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    cumulative_logprob: float | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimings:
    """Seconds on the monotonic clock; None for what has not happened yet."""

    arrived: float
    first_token: float | None = None
    last_token: float | None = None


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """What a caller sees of a request.

    ``num_output_tokens`` counts all tokens so far, whatever the kind. ``seed`` is the one used, so that any
    sample can be had again. ``error`` says what went wrong where the finish reason is ``error``.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: list[CompletionOutput]
    is_finished: bool
    seed: int
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    timings: RequestTimings
    error: str | None = None

    @property
    def finished(self) -> bool:
        """The field's customary name for ``is_finished``."""
        return self.is_finished


def _check_float(name: str, value: object, low: float, high: float, *, is_low_open: bool = False) -> None:
    # The bounds keep out NaN, which compares with nothing, and the infinities.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and low <= value <= high and not (is_low_open and value == low):  # type: ignore[operator]
        return
    bracket = "(" if is_low_open else "["
    raise InvalidRequestError(f"{name}: must be in {bracket}{low:g}, {high:g}], got {value!r}", param=name)


def _check_int(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return
    raise InvalidRequestError(f"{name}: must be an integer in [{low}, {high}], got {value!r}", param=name)


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidRequestError(f"{name}: must be true or false, got {value!r}", param=name)


def _as_tuple(name: str, values: object) -> tuple[Any, ...]:
    if not isinstance(values, Iterable):
        raise InvalidRequestError(f"{name}: must be a list, got {values!r}", param=name)
    return tuple(values)


def _as_output_kind(value: Any) -> RequestOutputKind:
    try:
        return RequestOutputKind(value)
    except ValueError:
        choices = ", ".join(RequestOutputKind)
        message = f"output_kind: must be one of {choices}, got {value!r}"
        raise InvalidRequestError(message, param="output_kind") from None
