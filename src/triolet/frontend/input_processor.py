"""InputProcessor: a prompt and its parameters → a checked :class:`Request`.

Everything that can be wrong with a request is found here, before the engine core sees it.
Pure and synchronous; long texts are tokenised in a worker thread by whoever calls.

This module knows no event loop and no HTTP.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from triolet.errors import InvalidRequestError, PromptTooLongError
from triolet.frontend.request_state import RequestState
from triolet.request import Request
from triolet.sampling_params import SamplingParams
from triolet.text.chat_template import ChatTemplate
from triolet.text.tokenizer import Tokenizer

__all__ = ["InputProcessor", "Prompt", "SeedSource"]

NUM_SEEDS = 2**53  # what JSON readers with floating-point numbers can hold exactly

Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputProcessor:
    """Checks and tokenises for one model. ``seeds`` yields a seed for each request that names none."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    max_model_len: int
    vocab_size: int
    seeds: SeedSource
    _ids: count[int]

    @classmethod
    def create(
        cls,
        *,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        max_model_len: int,
        vocab_size: int,
        seed: int | None,
    ) -> InputProcessor:
        return cls(
            tokenizer=tokenizer,
            chat_template=chat_template,
            max_model_len=max_model_len,
            vocab_size=vocab_size,
            seeds=SeedSource(seed),
            _ids=count(),
        )

    def prepare(
        self, prompt: Prompt, params: SamplingParams, *, request_id: str | None = None
    ) -> RequestState:
        """A request that goes on where ``prompt`` ends. Raises what its parts below raise."""
        arrived = time.monotonic()
        text = prompt if isinstance(prompt, str) else None
        return self.process(
            self.tokenize(prompt), params, request_id=request_id, prompt=text, arrived=arrived
        )

    def prepare_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        add_generation_prompt: bool = True,
    ) -> RequestState:
        """A request that answers a conversation. Raises what its parts below raise."""
        arrived = time.monotonic()
        text = self.render_chat(messages, add_generation_prompt=add_generation_prompt)
        return self.process(
            self.tokenize_chat(text),
            params,
            request_id=request_id,
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
        prompt: str | None = None,
        param: str = "prompt",
        is_continuation: bool = True,
        arrived: float | None = None,
    ) -> RequestState:
        """The request for the core and its way back, under a new internal id.

        ``param``: the field that the tokens came from, blamed where they are too many.
        ``is_continuation``: the output goes on where the prompt ends, as it does not in a chat; then a space
        at its beginning is kept. ``arrived``: when it came, on the monotonic clock; now, if not given.

        Raises PromptTooLongError when prompt and output do not fit in the model's context.
        """
        internal_id = next(self._ids)
        request = Request(
            request_id=internal_id,
            prompt_token_ids=token_ids,
            max_tokens=self._max_tokens(len(token_ids), params.max_tokens, param),
            seed=self.seeds.next() if params.seed is None else params.seed,
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            min_p=params.min_p,
            stop_token_ids=self._stop_token_ids(params),
            num_logprobs=params.logprobs,
        )
        return RequestState(
            request=request,
            request_id=request_id if request_id is not None else str(internal_id),
            prompt=prompt,
            params=params,
            tokenizer=self.tokenizer,
            arrived=time.monotonic() if arrived is None else arrived,
            is_continuation=is_continuation,
        )

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

    def _max_tokens(self, num_prompt_tokens: int, max_tokens: int | None, param: str) -> int:
        room = self.max_model_len - num_prompt_tokens
        if room < 1:
            raise PromptTooLongError(
                f"{param}: {num_prompt_tokens} tokens, but the context is {self.max_model_len} tokens and "
                "at least one is needed for the output; send less",
                param=param,
            )
        if max_tokens is None:
            return room
        if max_tokens > room:
            raise PromptTooLongError(
                f"max_tokens: {num_prompt_tokens} prompt tokens and {max_tokens} output tokens exceed the "
                f"context of {self.max_model_len} tokens; lower max_tokens to {room} or leave it out",
                param="max_tokens",
            )
        return max_tokens

    def _stop_token_ids(self, params: SamplingParams) -> frozenset[int]:
        for token_id in params.stop_token_ids:
            if token_id >= self.vocab_size:
                raise InvalidRequestError(
                    f"stop_token_ids: {token_id} is outside the vocabulary [0, {self.vocab_size})",
                    param="stop_token_ids",
                )
        ends = frozenset() if params.ignore_eos else self.tokenizer.eos_token_ids
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


class SeedSource:
    """Seeds for requests that name none: a reproducible sequence from a seed, or unpredictable ones."""

    def __init__(self, seed: int | None) -> None:
        self._seed = seed
        self._numbers = count()

    def next(self) -> int:
        if self._seed is None:
            return secrets.randbelow(NUM_SEEDS)
        # A Weyl sequence: each step adds an odd constant, so no seed repeats within 2^53 requests.
        return (self._seed + next(self._numbers) * 0x13C6EF372FE94B) % NUM_SEEDS
