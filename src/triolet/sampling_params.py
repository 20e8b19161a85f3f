"""What a caller may ask of a generation: how tokens are chosen, what they must spell, when to stop.

Everything is checked when made; a wrong value raises :class:`InvalidRequestError` naming the field.

This module knows no engine, no tokeniser and no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from triolet.errors import InvalidRequestError
from triolet.field_checks import as_tuple, check_bool, check_float, check_int, check_length

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "BeamSearchParams",
    "LogitsProcessor",
    "RequestOutputKind",
    "SamplingParams",
    "StopCriterion",
    "StructuredOutputs",
]

MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_BAD_WORDS = 1024
MAX_BIASES = 1024
MAX_ALLOWED_TOKENS = 1 << 20
MAX_SEED = 2**63 - 1
MAX_COUNT = 2**31 - 1
MAX_BEAMS = 64

LogitsProcessor = Callable[[Sequence[int], "NDArray[np.float32]"], "NDArray[np.float32]"]
"""``(output token ids so far, logits (V,)) → logits (V,)``; a pure function of the two. May change its
argument and return it. Called in the engine's own process, for each token."""

StopCriterion = Callable[[Sequence[int], str], bool]
"""``(output token ids so far, text so far) → whether to stop`` after the last of them."""


class RequestOutputKind(StrEnum):
    """What each :class:`RequestOutput` of a request holds."""

    CUMULATIVE = "cumulative"
    """Everything so far, each time."""
    DELTA = "delta"
    """What is new since the last one."""
    FINAL_ONLY = "final_only"
    """One output, at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputs:
    """What the whole output must be; exactly one is set.

    ``json``: a JSON schema. ``json_object``: any JSON object. ``regex``: a regular expression. ``choice``:
    one of some strings. ``grammar``: a context-free grammar in Lark's notation or GBNF. ``structural_tag``:
    free text in which some tags begin parts that follow a schema. What cannot be compiled is refused when
    the request is made.
    """

    json: str | Mapping[str, Any] | bool | None = None
    json_object: bool = False
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    structural_tag: str | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check_bool("structured_outputs.json_object", self.json_object)
        given = [field.name for field in fields(self) if getattr(self, field.name) not in (None, False)]
        if self.json is False:
            given.append("json")
        if len(given) != 1:
            raise InvalidRequestError(
                "structured_outputs: give exactly one of json, json_object, regex, choice, grammar, "
                f"structural_tag; got {', '.join(given) or 'none'}",
                param="structured_outputs",
            )
        if self.choice is not None:
            choice = as_tuple("structured_outputs.choice", self.choice)
            if not choice or not all(isinstance(text, str) and text for text in choice):
                raise InvalidRequestError(
                    "structured_outputs.choice: must be a list of non-empty strings, with one at least",
                    param="structured_outputs.choice",
                )
            object.__setattr__(self, "choice", choice)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and when to stop. Values out of range raise :class:`InvalidRequestError`.

    **Choosing.** ``temperature`` 0 is greedy. ``top_k`` 0 or -1, ``top_p`` 1 and ``min_p`` 0 are off.
    ``presence_penalty`` and ``frequency_penalty`` are taken off the logits of tokens in the output, once and
    once for each time; ``repetition_penalty`` divides positive logits (multiplies negative ones) of tokens in
    the prompt or the output. ``logit_bias`` is added by token id. ``bad_words`` never come out;
    ``allowed_token_ids``, if any, are all that may. ``structured_outputs`` is what the output must be.
    ``logits_processors`` are functions of one's own, in the engine's process only.

    **Several.** ``n`` continuations of one prompt. ``seed`` None picks one at random; the seed used comes
    back in the output, and that of continuation i is the seed plus i.

    **Stopping.** ``max_tokens`` None means all that fits. ``min_tokens`` come before any end of sequence or
    stop token; stop strings are not looked for before. ``stop_criteria`` are functions of one's own.

    **Reasoning.** ``thinking_budget`` is the most tokens that a model may reason for before its answer; then
    the end of its reasoning is written for it. Only for models whose chat template has marks for that.

    **Telling.** ``logprobs`` is the number of most likely tokens reported beside the sampled one (0: just
    that one), ``prompt_logprobs`` the same for the tokens of the prompt. ``truncate_prompt_tokens`` keeps
    the last so many tokens of the prompt; -1: as many as the model's context has room for.

    Lists are kept as tuples, ``logit_bias`` as a dict of its own, whatever they were.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = None
    bad_words: Sequence[str] = ()
    allowed_token_ids: Sequence[int] | None = None
    structured_outputs: StructuredOutputs | None = None
    logits_processors: Sequence[LogitsProcessor] = ()
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    stop_criteria: Sequence[StopCriterion] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    thinking_budget: int | None = None
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    def __post_init__(self) -> None:
        self._normalize()
        self._check_choosing()
        self._check_stopping()
        self._check_lists()
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            check_bool(name, getattr(self, name))

    def _normalize(self) -> None:
        for name in ("stop", "bad_words"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else as_tuple(name, value))
        for name in ("stop_token_ids", "logits_processors", "stop_criteria"):
            object.__setattr__(self, name, as_tuple(name, getattr(self, name)))
        if self.allowed_token_ids is not None:
            allowed = as_tuple("allowed_token_ids", self.allowed_token_ids)
            object.__setattr__(self, "allowed_token_ids", allowed)
        object.__setattr__(self, "output_kind", _as_output_kind(self.output_kind))
        object.__setattr__(self, "logit_bias", _as_logit_bias(self.logit_bias))
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)

    def _check_choosing(self) -> None:
        check_int("n", self.n, 1, MAX_CHOICES)
        check_float("temperature", self.temperature, 0.0, 2.0)
        check_float("top_p", self.top_p, 0.0, 1.0, is_low_open=True)
        check_float("min_p", self.min_p, 0.0, 1.0)
        check_int("top_k", self.top_k, 0, MAX_COUNT)
        check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        check_float("repetition_penalty", self.repetition_penalty, 0.0, 10.0, is_low_open=True)
        if self.seed is not None:
            check_int("seed", self.seed, -MAX_SEED - 1, MAX_SEED)
        if not isinstance(self.structured_outputs, StructuredOutputs | None):
            raise InvalidRequestError(
                "structured_outputs: must be a StructuredOutputs", param="structured_outputs"
            )

    def _check_stopping(self) -> None:
        if self.max_tokens is not None:
            check_int("max_tokens", self.max_tokens, 1, MAX_COUNT)
        check_int("min_tokens", self.min_tokens, 0, MAX_COUNT)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens: must be at most max_tokens ({self.max_tokens}), got {self.min_tokens}",
                param="min_tokens",
            )
        if self.thinking_budget is not None:
            check_int("thinking_budget", self.thinking_budget, 0, MAX_COUNT)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), 0, MAX_LOGPROBS)
        if self.truncate_prompt_tokens is not None and self.truncate_prompt_tokens != -1:
            check_int("truncate_prompt_tokens", self.truncate_prompt_tokens, 1, MAX_COUNT)

    def _check_lists(self) -> None:
        for name, limit in (("stop", MAX_STOPS), ("bad_words", MAX_BAD_WORDS)):
            check_length(name, getattr(self, name), limit)
            for text in getattr(self, name):
                if not isinstance(text, str) or not text:
                    raise InvalidRequestError(
                        f"{name}: each must be a non-empty string, got {text!r}", param=name
                    )
        for token_id in self.stop_token_ids:
            check_int("stop_token_ids", token_id, 0, MAX_COUNT)
        if self.allowed_token_ids is not None:
            check_length("allowed_token_ids", tuple(self.allowed_token_ids), MAX_ALLOWED_TOKENS)
            if not self.allowed_token_ids:
                raise InvalidRequestError("allowed_token_ids: must not be empty", param="allowed_token_ids")
            for token_id in self.allowed_token_ids:
                check_int("allowed_token_ids", token_id, 0, MAX_COUNT)
        for name in ("logits_processors", "stop_criteria"):
            if not all(callable(function) for function in getattr(self, name)):
                raise InvalidRequestError(f"{name}: each must be a function", param=name)

    def replace(self, **changes: Any) -> SamplingParams:
        """A copy with some fields changed; the original is never touched."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchParams:
    """Keep the ``beam_width`` likeliest continuations at each token; the best of them come back, best first.

    A continuation's score is its log-probability over its length to the power of ``length_penalty``.
    """

    beam_width: int
    max_tokens: int
    length_penalty: float = 1.0
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        check_int("beam_width", self.beam_width, 1, MAX_BEAMS)
        check_int("max_tokens", self.max_tokens, 1, MAX_COUNT)
        check_float("length_penalty", self.length_penalty, -10.0, 10.0)
        check_bool("ignore_eos", self.ignore_eos)
        check_bool("include_stop_str_in_output", self.include_stop_str_in_output)


def _as_logit_bias(value: object) -> dict[int, float] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InvalidRequestError(
            f"logit_bias: must map token ids to numbers, got {value!r}", param="logit_bias"
        )
    check_length("logit_bias", tuple(value), MAX_BIASES)
    for token_id, bias in value.items():
        check_int("logit_bias", token_id, 0, MAX_COUNT)
        check_float("logit_bias", bias, -100.0, 100.0)
    return dict(value)


def _as_output_kind(value: Any) -> RequestOutputKind:
    try:
        return RequestOutputKind(value)
    except ValueError:
        choices = ", ".join(RequestOutputKind)
        message = f"output_kind: must be one of {choices}, got {value!r}"
        raise InvalidRequestError(message, param="output_kind") from None
