"""InputProcessor: a prompt and its parameters → a checked :class:`Request`.

Everything that can be wrong with a request is found here, before the engine core sees it.
Pure and synchronous; long texts are tokenised in a worker thread by whoever calls.

This module knows no event loop and no HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from triolet.args import EngineArgs
from triolet.errors import InvalidRequestError, PromptTooLongError
from triolet.frontend.adjustments import check_token_ids, logits_adjustments
from triolet.frontend.request_state import RequestHead, RequestState
from triolet.frontend.sampling_state import SamplingState
from triolet.frontend.seeds import SeedSource, continuation_seed
from triolet.request import Request, RequestOptions
from triolet.sampling_params import SamplingParams
from triolet.text.chat_template import ChatTemplate
from triolet.text.grammar import GrammarCompiler
from triolet.text.tokenizer import Tokenizer

__all__ = ["InputProcessor", "Prompt"]

SMALLEST_TIME_OUT = 1e-9

Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputProcessor:
    """Checks and tokenises for one model. ``seeds`` yields a seed for each request that names none."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    max_model_len: int
    vocab_size: int
    max_num_queued_requests: int
    has_priorities: bool
    seeds: SeedSource
    grammars: GrammarCompiler
    _ids: count[int]

    @classmethod
    def create(
        cls,
        args: EngineArgs,
        *,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        max_model_len: int,
        vocab_size: int,
    ) -> InputProcessor:
        return cls(
            tokenizer=tokenizer,
            chat_template=chat_template,
            max_model_len=max_model_len,
            vocab_size=vocab_size,
            max_num_queued_requests=args.max_num_queued_requests,
            has_priorities=args.scheduling_policy == "priority",
            seeds=SeedSource(args.seed),
            grammars=GrammarCompiler(tokenizer, vocab_size),
            _ids=count(),
        )

    def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        options: RequestOptions | None = None,
    ) -> RequestState:
        """A request that goes on where ``prompt`` ends. Raises what its parts below raise."""
        arrived = time.monotonic()
        text = prompt if isinstance(prompt, str) else None
        return self.process(
            self.tokenize(prompt),
            params,
            request_id=request_id,
            options=options,
            prompt=text,
            arrived=arrived,
        )

    def prepare_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        options: RequestOptions | None = None,
        add_generation_prompt: bool = True,
    ) -> RequestState:
        """A request that answers a conversation. Raises what its parts below raise."""
        arrived = time.monotonic()
        text = self.render_chat(messages, add_generation_prompt=add_generation_prompt)
        return self.process(
            self.tokenize_chat(text),
            params,
            request_id=request_id,
            options=options,
            prompt=text,
            param="messages",
            is_continuation=False,
            arrived=arrived,
        )

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
    ) -> str:
        """The prompt text of a conversation. Raises InvalidRequestError naming ``messages``."""
        if not isinstance(messages, Sequence) or isinstance(messages, str):
            raise InvalidRequestError(
                f"messages: must be a list of messages, got {type(messages).__name__}", param="messages"
            )
        if self.chat_template is None:
            raise InvalidRequestError(
                "messages: this model has no chat template; give one with --chat-template, or send a prompt",
                param="messages",
            )
        return self.chat_template.render(messages, add_generation_prompt=add_generation_prompt)

    def must_compile(self, params: SamplingParams) -> bool:
        """Whether a grammar has to be compiled for them, which may take seconds."""
        spec = params.structured_outputs
        return spec is not None and self.grammars.find(spec) is None

    def tokenize(self, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of a prompt, checked. Raises InvalidRequestError naming ``prompt``."""
        if isinstance(prompt, str):
            return self._encode(prompt, add_special_tokens=True, param="prompt")
        return self._checked(_as_token_ids(prompt))

    def tokenize_chat(self, text: str) -> tuple[int, ...]:
        """Token ids of what :meth:`render_chat` made. Raises InvalidRequestError naming ``messages``."""
        return self._encode(text, add_special_tokens=False, param="messages")

    def process(
        self,
        token_ids: tuple[int, ...],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        options: RequestOptions | None = None,
        prompt: str | None = None,
        param: str = "prompt",
        is_continuation: bool = True,
        arrived: float | None = None,
    ) -> RequestState:
        """The core requests, one for each continuation, and their way back.

        ``param``: the field that the tokens came from, blamed where they are too many.
        ``is_continuation``: the output goes on where the prompt ends, as it does not in a chat; then a space
        at its beginning is kept. ``arrived``: when it came, on the monotonic clock; now, if not given.

        Raises PromptTooLongError when prompt and output do not fit in the model's context, and
        InvalidRequestError for what this model or this engine cannot do.
        """
        arrived = time.monotonic() if arrived is None else arrived
        token_ids = self._truncated(token_ids, params)
        request = self._core_request(token_ids, params, self._options(options, arrived), param)
        head = RequestHead(
            request_id=str(request.request_id) if request_id is None else request_id,
            prompt=prompt,
            prompt_token_ids=token_ids,
            kind=params.output_kind,
            seed=request.seed,
            arrived=arrived,
        )
        requests = (request, *(self._sibling(request, index) for index in range(1, params.n)))
        return SamplingState(head, requests, params, self.tokenizer, is_continuation=is_continuation)

    def _core_request(
        self, token_ids: tuple[int, ...], params: SamplingParams, options: RequestOptions, param: str
    ) -> Request:
        """The request of the first continuation, under a new internal id."""
        if params.n > self.max_num_queued_requests:
            raise InvalidRequestError(
                f"n: {params.n} continuations never fit in the queue, which takes "
                f"{self.max_num_queued_requests} (--max-num-queued-requests); ask for fewer",
                param="n",
            )
        stop_token_ids = self._stop_token_ids(params)
        spec = params.structured_outputs
        adjustments = logits_adjustments(
            params,
            tokenizer=self.tokenizer,
            vocab_size=self.vocab_size,
            end_token_ids=stop_token_ids,
            grammar=None if spec is None else self.grammars.compile(spec),
        )
        return Request(
            request_id=next(self._ids),
            prompt_token_ids=token_ids,
            max_tokens=self._max_tokens(len(token_ids), params, param),
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

    def _sibling(self, request: Request, index: int) -> Request:
        """The prompt's log-probabilities are asked of the first alone: they are the same for all."""
        return replace(
            request,
            request_id=next(self._ids),
            seed=continuation_seed(request.seed, index),
            num_prompt_logprobs=None,
        )

    def _options(self, options: RequestOptions | None, arrived: float) -> RequestOptions:
        """With what is left of the time-outs now. Raises InvalidRequestError for an idle priority."""
        options = options or RequestOptions()
        if options.priority and not self.has_priorities:
            raise InvalidRequestError(
                "priority: this engine serves first come, first served; start it with "
                "--scheduling-policy priority, or leave it out",
                param="priority",
            )
        time_outs = {
            name: getattr(options, name)
            for name in ("queue_timeout", "first_token_timeout", "timeout")
            if getattr(options, name) is not None
        }
        if not time_outs:
            return options
        age = time.monotonic() - arrived
        left = {name: max(value - age, SMALLEST_TIME_OUT) for name, value in time_outs.items()}
        return replace(options, **left)

    def _truncated(self, token_ids: tuple[int, ...], params: SamplingParams) -> tuple[int, ...]:
        """The end of the prompt, where truncation is asked for."""
        num_tokens = params.truncate_prompt_tokens
        if num_tokens is None:
            return token_ids
        if num_tokens == -1:
            num_tokens = max(1, self.max_model_len - (params.max_tokens or 1))
        return token_ids[-num_tokens:]

    def _encode(self, text: str, *, add_special_tokens: bool, param: str) -> tuple[int, ...]:
        try:
            token_ids = self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        except InvalidRequestError as exc:
            raise InvalidRequestError(f"{param}: {exc.message}", param=param) from exc
        return self._checked(tuple(token_ids), param)

    def _checked(self, token_ids: tuple[int, ...], param: str = "prompt") -> tuple[int, ...]:
        """A tokeniser is checked as well: some know tokens that the model has no row for."""
        if not token_ids:
            raise InvalidRequestError(f"{param}: must not be empty", param=param)
        if min(token_ids) < 0 or max(token_ids) >= self.vocab_size:
            index = next(i for i, token_id in enumerate(token_ids) if not 0 <= token_id < self.vocab_size)
            raise InvalidRequestError(
                f"{param}: token {index} is {token_ids[index]}, not in the vocabulary [0, {self.vocab_size})",
                param=param,
            )
        return token_ids

    def _max_tokens(self, num_prompt_tokens: int, params: SamplingParams, param: str) -> int:
        room = self.max_model_len - num_prompt_tokens
        if room < 1:
            raise PromptTooLongError(
                f"{param}: {num_prompt_tokens} tokens, but the context is {self.max_model_len} tokens and "
                "at least one is needed for the output; send less",
                param=param,
            )
        for name in ("max_tokens", "min_tokens"):
            num_tokens = getattr(params, name)
            if num_tokens is not None and num_tokens > room:
                raise PromptTooLongError(
                    f"{name}: {num_prompt_tokens} prompt tokens and {num_tokens} output tokens exceed the "
                    f"context of {self.max_model_len} tokens; lower {name} to {room} or leave it out",
                    param=name,
                )
        return room if params.max_tokens is None else params.max_tokens

    def _stop_token_ids(self, params: SamplingParams) -> frozenset[int]:
        check_token_ids("stop_token_ids", params.stop_token_ids, self.vocab_size)
        # A grammar that has come to its end can only be followed by an end of sequence.
        is_ignored = params.ignore_eos and params.structured_outputs is None
        ends = frozenset() if is_ignored else self.tokenizer.eos_token_ids
        return ends.union(params.stop_token_ids)


def _as_token_ids(prompt: Sequence[int]) -> tuple[int, ...]:
    # Bytes are a sequence of integers too, but nobody who sends them means token ids.
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
        raise InvalidRequestError(
            f"prompt: must be a string or a list of token ids, got {type(prompt).__name__}", param="prompt"
        )
    for index, token_id in enumerate(prompt):
        if not isinstance(token_id, int) or isinstance(token_id, bool):
            raise InvalidRequestError(
                f"prompt[{index}]: must be a token id, got {token_id!r}", param="prompt"
            )
    return tuple(prompt)
