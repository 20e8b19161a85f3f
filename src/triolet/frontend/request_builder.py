"""RequestBuilder: token ids and parameters → core requests, and the state that awaits their outputs.

What the model or the engine cannot do is refused here, naming the field.

This module knows no text but that of words to forbid, no event loop and no HTTP.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

from triolet.errors import InvalidRequestError, PromptTooLongError
from triolet.frontend.adjustments import check_token_ids, logits_adjustments
from triolet.frontend.beam_search import BeamSearch
from triolet.frontend.beam_search_state import BeamSearchState
from triolet.frontend.request_state import RequestHead, RequestState
from triolet.frontend.sampling_state import SamplingState
from triolet.frontend.seeds import SeedSource, continuation_seed
from triolet.frontend.thinking import thinking_limit
from triolet.request import Request, RequestOptions
from triolet.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams
from triolet.text.grammar import GrammarCompiler
from triolet.text.reasoning import ReasoningFormat
from triolet.text.tokenizer import Tokenizer

__all__ = ["GenerationParams", "Origin", "RequestBuilder", "num_items"]

SMALLEST_TIME_OUT = 1e-9
TIME_OUTS = ("queue_timeout", "first_token_timeout", "timeout")

GenerationParams = SamplingParams | BeamSearchParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the tokens of a request come from.

    ``param``: the field to blame where they are too many. ``is_continuation``: the output goes on where the
    prompt ends, as it does not in a chat; then a space at its beginning is kept. ``arrived``: when it came,
    on the monotonic clock.
    """

    request_id: str | None = None
    prompt: str | None = None
    param: str = "prompt"
    is_continuation: bool = True
    arrived: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBuilder:
    """Builds requests for one model. ``seeds`` yields a seed for each request that names none."""

    tokenizer: Tokenizer
    max_model_len: int
    vocab_size: int
    max_num_queued_requests: int
    has_priorities: bool
    served_ranks: range
    seeds: SeedSource
    grammars: GrammarCompiler
    reasoning: ReasoningFormat | None
    _ids: count[int] = field(default_factory=count)

    def build(
        self,
        token_ids: tuple[int, ...],
        params: GenerationParams,
        options: RequestOptions | None,
        origin: Origin,
    ) -> RequestState:
        """The core requests under new internal ids, and their way back.

        Raises PromptTooLongError when prompt and output do not fit in the model's context, and
        InvalidRequestError for what this model or this engine cannot do.
        """
        if options is not None and not isinstance(options, RequestOptions):
            raise InvalidRequestError("options: must be RequestOptions", param="options")
        options = self._options(options or RequestOptions(), origin)
        if isinstance(params, BeamSearchParams):
            return self._beam_search_state(token_ids, params, options, origin)
        return self._sampling_state(self._truncated(token_ids, params), params, options, origin)

    def _sampling_state(
        self, token_ids: tuple[int, ...], params: SamplingParams, options: RequestOptions, origin: Origin
    ) -> SamplingState:
        self._check_queue("n", params.n)
        stop_token_ids = self._stop_token_ids(params)
        spec = params.structured_outputs
        adjustments = logits_adjustments(
            params,
            tokenizer=self.tokenizer,
            vocab_size=self.vocab_size,
            end_token_ids=stop_token_ids,
            grammar=None if spec is None else self.grammars.compile(spec),
            thinking_limit=thinking_limit(params, self.reasoning, self.tokenizer, token_ids),
        )
        first = Request(
            request_id=next(self._ids),
            prompt_token_ids=token_ids,
            max_tokens=self._max_tokens(len(token_ids), params, origin.param),
            seed=self.seeds.next() if params.seed is None else params.seed,
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            min_p=params.min_p,
            stop_token_ids=stop_token_ids,
            num_logprobs=params.logprobs,
            num_prompt_logprobs=params.prompt_logprobs,
            adjustments=adjustments,
            options=options,
        )
        return SamplingState(
            _head(first, params.output_kind, origin),
            (first, *(self._sibling(first, index) for index in range(1, params.n))),
            params,
            self.tokenizer,
            is_continuation=origin.is_continuation,
        )

    def _sibling(self, first: Request, index: int) -> Request:
        """The prompt's log-probabilities are asked of the first alone: they are the same for all."""
        return replace(
            first,
            request_id=next(self._ids),
            seed=continuation_seed(first.seed, index),
            num_prompt_logprobs=None,
        )

    def _beam_search_state(
        self, token_ids: tuple[int, ...], params: BeamSearchParams, options: RequestOptions, origin: Origin
    ) -> BeamSearchState:
        self._check_queue("beam_width", params.beam_width)
        self._max_tokens(len(token_ids), params, origin.param)
        search = BeamSearch(params, frozenset() if params.ignore_eos else self.tokenizer.eos_token_ids)
        first = Request(
            request_id=next(self._ids),
            prompt_token_ids=token_ids,
            max_tokens=1,
            seed=0,
            # Of the plain distribution, so that processed log-probabilities are the raw ones.
            temperature=1.0,
            num_logprobs=min(search.num_candidates, self.vocab_size),
            options=options,
        )
        return BeamSearchState(
            _head(first, RequestOutputKind.FINAL_ONLY, origin),
            first,
            search,
            params,
            self.tokenizer,
            next_id=partial(next, self._ids),
            deadline=None if options.timeout is None else time.monotonic() + options.timeout,
            is_continuation=origin.is_continuation,
        )

    def _options(self, options: RequestOptions, origin: Origin) -> RequestOptions:
        """With what is left of the time-outs now. Raises InvalidRequestError for what is not served here."""
        if options.priority and not self.has_priorities:
            raise InvalidRequestError(
                "priority: this engine serves first come, first served; start it with "
                "--scheduling-policy priority, or leave it out",
                param="priority",
            )
        rank, ranks = options.data_parallel_rank, self.served_ranks
        if rank is not None and rank not in ranks:
            raise InvalidRequestError(
                f"data_parallel_rank: must be a rank served here, {ranks[0]} to {ranks[-1]}, got {rank}",
                param="data_parallel_rank",
            )
        time_outs = {name: value for name in TIME_OUTS if (value := getattr(options, name)) is not None}
        if not time_outs:
            return options
        age = time.monotonic() - origin.arrived
        left = {name: max(value - age, SMALLEST_TIME_OUT) for name, value in time_outs.items()}
        return replace(options, **left)

    def _check_queue(self, name: str, num_requests: int) -> None:
        if num_requests > self.max_num_queued_requests:
            raise InvalidRequestError(
                f"{name}: {num_requests} continuations never fit in the queue, which takes "
                f"{self.max_num_queued_requests} (--max-num-queued-requests); ask for fewer",
                param=name,
            )

    def _truncated(self, token_ids: tuple[int, ...], params: SamplingParams) -> tuple[int, ...]:
        """The end of the prompt, where truncation is asked for."""
        num_tokens = params.truncate_prompt_tokens
        if num_tokens is None:
            return token_ids
        if num_tokens == -1:
            num_tokens = max(1, self.max_model_len - (params.max_tokens or 1))
        return token_ids[-num_tokens:]

    def _max_tokens(self, num_prompt_tokens: int, params: GenerationParams, param: str) -> int:
        # Agents find these two phrases in errors, with their numbers: they then shorten what they send.
        room = self.max_model_len - num_prompt_tokens
        if room < 1:
            raise PromptTooLongError(
                f"{param}: the prompt is too long: {num_prompt_tokens} tokens > {self.max_model_len - 1} "
                "maximum, which is the model's context without one token of output; send less",
                param=param,
            )
        for name in ("max_tokens", "min_tokens"):
            num_tokens = getattr(params, name, None)
            if num_tokens is not None and num_tokens > room:
                raise PromptTooLongError(
                    f"{name}: input length and `{name}` exceed context limit: {num_prompt_tokens} + "
                    f"{num_tokens} > {self.max_model_len}; lower {name} to {room} or leave it out",
                    param=name,
                )
        return room if params.max_tokens is None else params.max_tokens

    def _stop_token_ids(self, params: SamplingParams) -> frozenset[int]:
        check_token_ids("stop_token_ids", params.stop_token_ids, self.vocab_size)
        # A grammar that has come to its end can only be followed by an end of sequence.
        is_ignored = params.ignore_eos and params.structured_outputs is None
        ends = frozenset() if is_ignored else self.tokenizer.eos_token_ids
        return ends.union(params.stop_token_ids)


def num_items(params: GenerationParams) -> int:
    """How much there is to check in parameters: the characters and ids of their longer lists."""
    if isinstance(params, BeamSearchParams):
        return 0
    return sum(map(len, params.bad_words)) + len(params.allowed_token_ids or ())


def _head(first: Request, kind: RequestOutputKind, origin: Origin) -> RequestHead:
    return RequestHead(
        request_id=str(first.request_id) if origin.request_id is None else origin.request_id,
        prompt=origin.prompt,
        prompt_token_ids=first.prompt_token_ids,
        kind=kind,
        seed=first.seed,
        arrived=origin.arrived,
    )
