"""The messages between the front end and the engine core: what is asked, and what comes back.

A front end turns text into a :class:`Request` (token ids only); the core answers with
:class:`TokenOutput`; the front end turns that into a :class:`RequestOutput` (text again).

This module knows neither torch nor an event loop nor any other part of the engine but the parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from triolet.errors import InvalidRequestError
from triolet.field_checks import check_float, check_int
from triolet.sampling_params import LogitsProcessor

__all__ = [
    "CompletionOutput",
    "FinishReason",
    "LogitsAdjustments",
    "Request",
    "RequestOptions",
    "RequestOutput",
    "RequestTimings",
    "ThinkingLimit",
    "TokenLogprobs",
    "TokenOutput",
]

MAX_PRIORITY = 2**31 - 1
MAX_KEY_LENGTH = 256
MAX_RANK = 1023
MAX_SECONDS = 86_400.0


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    """End of sequence, a stop token or a stop string."""
    LENGTH = "length"
    """``max_tokens`` or the model's context is used up."""
    ABORT = "abort"
    """The caller left, or the engine was shut down."""
    TIMEOUT = "timeout"
    """One of its deadlines has passed."""
    ERROR = "error"
    """The request failed inside the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """How a request is to be served, whatever it generates.

    ``priority``: lower goes first, where the engine schedules by priority. ``fairness_key``: callers with
    different keys get equal shares. ``cache_salt``: the prefix cache is shared only with requests of the
    same salt. ``queue_timeout``, ``first_token_timeout``, ``timeout``: seconds from arrival until the first
    step, the first token, the end; a request that is late ends with what it has, finish reason ``timeout``.
    ``data_parallel_rank``: which of several engines is to serve it; the least busy one if None.
    ``reports_prompt_progress``: there is an output for each part of the prompt that is computed.
    """

    priority: int = 0
    fairness_key: str = ""
    cache_salt: str = ""
    queue_timeout: float | None = None
    first_token_timeout: float | None = None
    timeout: float | None = None
    data_parallel_rank: int | None = None
    reports_prompt_progress: bool = False

    def __post_init__(self) -> None:
        check_int("priority", self.priority, -MAX_PRIORITY, MAX_PRIORITY)
        for name in ("fairness_key", "cache_salt"):
            value = getattr(self, name)
            if not isinstance(value, str) or len(value) > MAX_KEY_LENGTH:
                raise InvalidRequestError(
                    f"{name}: must be a string of at most {MAX_KEY_LENGTH} characters", param=name
                )
        for name in ("queue_timeout", "first_token_timeout", "timeout"):
            if getattr(self, name) is not None:
                check_float(name, getattr(self, name), 0.0, MAX_SECONDS, is_low_open=True)
        if self.data_parallel_rank is not None:
            check_int("data_parallel_rank", self.data_parallel_rank, 0, MAX_RANK)
        if not isinstance(self.reports_prompt_progress, bool):
            raise InvalidRequestError(
                "reports_prompt_progress: must be true or false", param="reports_prompt_progress"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingLimit:
    """Where the reasoning of a model ends at the latest: after ``max_tokens`` tokens ``closing`` is written.

    It begins with the prompt if ``is_open``, else with ``opening``, before which nothing may come but tokens
    of ``spaces``. Both marks are token ids, at least one.
    """

    max_tokens: int
    opening: tuple[int, ...]
    closing: tuple[int, ...]
    is_open: bool
    spaces: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsAdjustments:
    """What is done to a row of logits before a token is chosen; see :class:`SamplingParams` for the meaning.

    ``banned_sequences``: the last token of each is forbidden where the output ends with the others.
    ``grammar`` is compiled: see :mod:`triolet.text.grammar`. ``end_token_ids``: what ``min_tokens`` forbids.
    """

    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    banned_sequences: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    min_tokens: int = 0
    end_token_ids: frozenset[int] = frozenset()
    grammar: str | None = None
    thinking_limit: ThinkingLimit | None = None
    processors: tuple[LogitsProcessor, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the engine core is asked to do. Everything in it has been checked and resolved.

    ``request_id`` is an internal key, unique in the front end that made it: never a caller's id.
    ``stop_token_ids`` holds the end-of-sequence ids as well, unless they are to be ignored.
    ``adjustments`` is None where the model's logits are taken as they are. The time-outs in ``options`` are
    what is left of them when the request reaches the core.
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
    num_prompt_logprobs: int | None = None
    adjustments: LogitsAdjustments | None = None
    options: RequestOptions = field(default_factory=RequestOptions)

    @property
    def is_chosen_by_host(self) -> bool:
        """Whether its tokens are chosen beside the device, from logits that are brought over.

        The host has to know what was said before, so no two tokens of it are on their way at once.
        """
        adjustments = self.adjustments
        return adjustments is not None and (
            adjustments.grammar is not None
            or adjustments.thinking_limit is not None
            or bool(adjustments.processors)
        )


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of probabilities at one position, from the model's raw distribution.

    The sampled token comes first, then the most likely ones in descending order.
    ``rank`` is the sampled token's place in the whole vocabulary, 1 for the most likely.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    rank: int


@dataclass(slots=True, kw_only=True)
class TokenOutput:
    """What one step produced for one request. The one with a ``finish_reason`` is the last.

    ``error_param``: the field of the request that is to blame for the ``error``; None where the engine is.
    ``is_engine_dead``: the engine that ran the request has ended, of which ``error`` is the cause.
    ``num_cached_tokens``: how much of the prompt was found in the prefix cache. ``prompt_logprobs``: of the
    next tokens of the prompt after its first, where they were asked for. ``num_computed_prompt_tokens``: how
    much of the prompt is computed, told only before the first token, and where it was asked for.
    ``prefill_seconds``: with the first token, how long ago the request's first step began.
    """

    request_id: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: str | None = None
    error_param: str | None = None
    num_cached_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    is_engine_dead: bool = False
    num_computed_prompt_tokens: int = 0
    prefill_seconds: float | None = None


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
    """Seconds on the monotonic clock; None for what has not happened yet.

    ``started``: the beginning of the first step. It is known once there is a token.
    """

    arrived: float
    started: float | None = None
    first_token: float | None = None
    last_token: float | None = None


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """What a caller sees of a request.

    ``outputs`` has one entry for each continuation that has news, by index. ``num_output_tokens`` counts all
    tokens so far, of all continuations, whatever the kind. ``seed`` is the one used, so that any sample can
    be had again. ``prompt_logprobs`` has an entry for each token of the prompt, None for the first; it comes
    once, with the first output. ``error`` says what went wrong where the finish reason is ``error``.
    ``num_computed_prompt_tokens`` is all of the prompt from the first token on; before that there are outputs
    only where ``reports_prompt_progress`` asks for them, without any continuation.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: list[CompletionOutput]
    is_finished: bool
    seed: int
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    num_computed_prompt_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    timings: RequestTimings
    error: str | None = None

    @property
    def finished(self) -> bool:
        """The field's customary name for ``is_finished``."""
        return self.is_finished
