"""InputProcessor: a prompt and its parameters → a checked :class:`Request`.

Everything that can be wrong with a request is found here, before the engine core sees it.
Pure and synchronous; long texts are tokenised in a worker thread by whoever calls.

This module knows no event loop and no HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triolet.args import EngineArgs
from triolet.errors import InvalidRequestError
from triolet.frontend.request_builder import GenerationParams, Origin, RequestBuilder
from triolet.frontend.request_state import RequestState
from triolet.frontend.seeds import SeedSource
from triolet.request import RequestOptions
from triolet.sampling_params import SamplingParams
from triolet.text.chat_template import ChatTemplate
from triolet.text.grammar import GrammarCompiler
from triolet.text.tokenizer import Tokenizer

__all__ = ["GenerationParams", "InputProcessor", "Prompt", "prompt_length"]

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or either under its name: ``{"prompt": text}``, ``{"prompt_token_ids": ids}``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputProcessor:
    """Renders, tokenises and checks for one model."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    vocab_size: int
    max_model_len: int
    grammars: GrammarCompiler
    builder: RequestBuilder

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
        grammars = GrammarCompiler(tokenizer, vocab_size)
        builder = RequestBuilder(
            tokenizer=tokenizer,
            grammars=grammars,
            reasoning=None if chat_template is None else chat_template.reasoning_format,
            max_model_len=max_model_len,
            vocab_size=vocab_size,
            max_num_queued_requests=args.max_num_queued_requests,
            has_priorities=args.scheduling_policy == "priority",
            served_ranks=args.launch_shape().served_ranks,
            seeds=SeedSource(args.seed),
        )
        return cls(
            tokenizer=tokenizer,
            chat_template=chat_template,
            vocab_size=vocab_size,
            max_model_len=max_model_len,
            grammars=grammars,
            builder=builder,
        )

    def prepare(
        self,
        prompt: Prompt,
        params: GenerationParams,
        *,
        request_id: str | None = None,
        options: RequestOptions | None = None,
    ) -> RequestState:
        """A request that goes on where ``prompt`` ends. Raises what its parts raise."""
        prompt = _unnamed(prompt)
        origin = Origin(request_id=request_id, prompt=prompt if isinstance(prompt, str) else None)
        return self.builder.build(self.tokenize(prompt), params, options, origin)

    def prepare_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: GenerationParams,
        *,
        request_id: str | None = None,
        options: RequestOptions | None = None,
        **rendering: Any,
    ) -> RequestState:
        """A request that answers a conversation; ``rendering`` is for the chat template.

        Raises what its parts raise.
        """
        arrived = time.monotonic()
        text = self.render_chat(messages, **rendering)
        origin = Origin(
            request_id=request_id, prompt=text, param="messages", is_continuation=False, arrived=arrived
        )
        return self.builder.build(self.tokenize_chat(text), params, options, origin)

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **rendering: Any) -> str:
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
        return self.chat_template.render(messages, **rendering)

    def must_compile(self, params: GenerationParams) -> bool:
        """Whether a grammar has to be compiled for them, which may take seconds."""
        spec = params.structured_outputs if isinstance(params, SamplingParams) else None
        return spec is not None and self.grammars.find(spec) is None

    def tokenize(self, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of a prompt, checked. Raises InvalidRequestError naming ``prompt``."""
        prompt = _unnamed(prompt)
        if isinstance(prompt, str):
            return self._encode(prompt, add_special_tokens=True, param="prompt")
        return self._checked(_as_token_ids(prompt))

    def tokenize_chat(self, text: str) -> tuple[int, ...]:
        """Token ids of what :meth:`render_chat` made. Raises InvalidRequestError naming ``messages``."""
        return self._encode(text, add_special_tokens=False, param="messages")

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


def prompt_length(prompt: Prompt) -> int:
    """Characters or token ids; 0 for what is no prompt at all."""
    values = list(prompt.values()) if isinstance(prompt, Mapping) else [prompt]
    return sum(len(value) for value in values if isinstance(value, Sequence))


def _unnamed(prompt: Prompt) -> str | Sequence[int]:
    """A prompt without the name that says what it is."""
    if not isinstance(prompt, Mapping):
        return prompt
    for name, kind in (("prompt", str), ("prompt_token_ids", Sequence)):
        value = prompt.get(name)
        if len(prompt) == 1 and isinstance(value, kind):
            return value
    raise InvalidRequestError(
        "prompt: a mapping must have a text under 'prompt' or token ids under 'prompt_token_ids', and "
        f"nothing else; got {', '.join(map(repr, prompt)) or 'nothing'}",
        param="prompt",
    )


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
