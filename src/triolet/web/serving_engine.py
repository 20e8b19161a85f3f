"""What the HTTP front end needs of an engine; :class:`triolet.engine.Engine` has it, and so have fakes.

Nothing here knows HTTP or how an engine works.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from anyio.abc import TaskStatus

from triolet.core.control import PauseMode, SleepPart
from triolet.errors import TrioletError
from triolet.request import RequestOptions, RequestOutput
from triolet.sampling_params import BeamSearchParams, SamplingParams
from triolet.statistics import EngineHealth, EngineState, EngineStatistics
from triolet.text.reasoning import ReasoningFormat
from triolet.text.tool_parsers.tool_format import ToolFormat

__all__ = ["MessageText", "OutputStream", "ServingEngine", "TokenText"]


class OutputStream(Protocol):
    """The outputs of one request. It is ended by being let go, and by cancellation of ``__anext__``."""

    @property
    def request_id(self) -> str: ...

    @property
    def prompt_token_ids(self) -> Sequence[int]: ...

    def __aiter__(self) -> OutputStream: ...

    async def __anext__(self) -> RequestOutput: ...

    async def wait_ready(self, until: float = math.inf) -> bool:
        """Wait until ``__anext__`` has something at once; False at ``until`` (``anyio.current_time()``).

        Being cancelled here ends nothing.
        """

    def abort(self) -> None:
        """End the request now. Idempotent, never blocks."""


class TokenText(Protocol):
    """The tokenizer: text to tokens and back, and how tokens look. Thread-safe."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def special_token_ids(self) -> Collection[int]: ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Raises InvalidRequestError for text that is not Unicode."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...

    def id_to_token(self, token_id: int) -> str | None: ...

    def token_bytes(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> bytes: ...


class MessageText(Protocol):
    """The chat template, and how the model writes calls and reasoning. Thread-safe."""

    @property
    def tool_format(self) -> ToolFormat: ...

    @property
    def reasoning_format(self) -> ReasoningFormat | None: ...

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = ...,
        continue_final_message: bool = ...,
        tools: Sequence[Mapping[str, Any]] | None = ...,
        chat_template_kwargs: Mapping[str, Any] | None = ...,
    ) -> str: ...


class ServingEngine(Protocol):
    """The engine behind the routes. ``max_model_len``, tokenizer and template exist once it is ready."""

    @property
    def model_names(self) -> tuple[str, ...]: ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def tokenizer(self) -> TokenText: ...

    @property
    def chat_template(self) -> MessageText | None: ...

    @property
    def state(self) -> EngineState: ...

    def health(self) -> EngineHealth: ...

    def statistics(self) -> EngineStatistics: ...

    async def refresh_statistics(self) -> None: ...

    async def run(self, *, task_status: TaskStatus[None]) -> None: ...

    def stop(self) -> None: ...

    async def submit(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | BeamSearchParams,
        *,
        request_id: str | None = None,
        options: RequestOptions | None = None,
    ) -> OutputStream: ...

    async def submit_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | BeamSearchParams,
        *,
        request_id: str | None = None,
        options: RequestOptions | None = None,
        **rendering: Any,
    ) -> OutputStream: ...

    def check_room(self) -> None:
        """Raises OverloadedError while any request would be refused, because too many wait."""

    def count_refusal(self, error: TrioletError) -> None:
        """Count a request that was refused before it was submitted."""

    @property
    def is_paused(self) -> bool: ...

    @property
    def is_sleeping(self) -> bool: ...

    async def pause(self, mode: PauseMode = "abort", *, clear_cache: bool = True) -> None: ...

    async def resume(self) -> None: ...

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None: ...

    async def wake_up(self, tags: Iterable[SleepPart] | None = None) -> None: ...

    async def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool: ...

    async def abort(self, request_ids: str | Iterable[str]) -> None: ...

    async def restart_rank(self, rank: int, *, seconds: float = 30.0) -> None: ...

    async def restart_ranks(self, *, seconds: float = 30.0) -> None: ...

    def begin_drain(self) -> None: ...

    def end_within(self, seconds: float) -> None: ...

    async def wait_idle(self) -> None: ...

    def abort_all(self, reason: str) -> None: ...
