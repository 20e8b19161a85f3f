"""The bodies of ``/v1/messages`` and ``/v1/messages/count_tokens``: strict types.

Knows nothing of the engine, of chats or of HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

from triolet.errors import InvalidRequestError
from triolet.web.fields import is_neutral
from triolet.web.stated_limits import stated

__all__ = [
    "Block",
    "CountTokensBody",
    "InputMessage",
    "MessagesBody",
    "Metadata",
    "OutputConfig",
    "Thinking",
    "ToolBody",
    "ToolChoice",
]

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "container": (),
    "context_management": (
        {}, {"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    ),
    "mcp_servers": ([],),
    "speed": ("standard",),
}  # fmt: skip
_NEUTRAL_OF_TOOLS: Mapping[str, tuple[Any, ...]] = {
    "allowed_callers": (["direct"], []),
    "defer_loading": (False,),
    "input_examples": ([],),
}


class Block(Struct):
    """A part of a message: text, a call of a tool, the result of one, or thinking that is sent back.

    Its other fields, as ``cache_control`` and ``citations``, change nothing here.
    """

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None
    is_error: bool | None = None
    thinking: str | None = None


class InputMessage(Struct, forbid_unknown_fields=True):
    """One turn, or a part of one: messages of the same role that follow each other are one turn."""

    role: Annotated[str, stated(enum=["assistant", "system", "user"])]
    content: str | list[Block]


class ToolBody(Struct):
    """A tool that the caller runs. ``strict`` holds its input to the schema wherever it is called."""

    name: str
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None
    type: str | None = None
    allowed_callers: list[str] | None = None
    defer_loading: bool | None = None
    input_examples: list[Any] | None = None

    def check(self, where: str) -> None:
        """Raises :class:`InvalidRequestError` for what is no tool of the caller's."""
        if self.type not in (None, "custom"):
            raise _refusal(
                f"{where}.type",
                f"tools that the server runs are not served, got {self.type!r:.60}; remove it",
            )
        if self.input_schema is None:
            raise _refusal(f"{where}.input_schema", "missing")
        for name, neutral in _NEUTRAL_OF_TOOLS.items():
            if not is_neutral(getattr(self, name), neutral):
                raise _refusal(f"{where}.{name}", "this server does not support it; remove it")


class ToolChoice(Struct, forbid_unknown_fields=True):
    """``auto``, ``any``, ``tool`` with its name, or ``none``."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct, forbid_unknown_fields=True):
    """``enabled`` with a budget, ``adaptive``, or ``disabled``. ``display`` may be ``omitted``."""

    type: str
    budget_tokens: int | None = None
    display: str | None = None


class OutputConfig(Struct, forbid_unknown_fields=True):
    """``format`` is ``{"type": "json_schema", "schema": …}``."""

    effort: str | None = None
    format: dict[str, Any] | None = None


class Metadata(Struct):
    """``user_id`` gets a fair share, where no keys are asked for."""

    user_id: str | None = None


class CountTokensBody(Struct, kw_only=True):
    """``POST /v1/messages/count_tokens``: what the prompt is made of. None is "not given".

    ``cache_control`` changes nothing: every prefix is kept as long as there is room.
    """

    neutral_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = _NEUTRAL

    messages: Annotated[list[InputMessage], Meta(min_length=1)]
    model: str | None = None
    system: str | list[Block] | None = None
    tools: list[ToolBody] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None

    def check(self) -> None:
        """Check what the types cannot say. Raises :class:`InvalidRequestError`."""
        thinking = self.thinking
        if thinking is None:
            return
        if thinking.type not in ("enabled", "adaptive", "disabled"):
            raise _refusal(
                "thinking.type", f"must be enabled, adaptive or disabled, got {thinking.type!r:.60}"
            )
        if thinking.type == "enabled" and thinking.budget_tokens is None:
            raise _refusal(
                "thinking.budget_tokens", "needed where thinking is enabled; send it, or 'adaptive'"
            )
        if thinking.type != "enabled" and thinking.budget_tokens is not None:
            raise _refusal("thinking.budget_tokens", f"not allowed with thinking {thinking.type}; remove it")
        if thinking.display not in (None, "summarized", "omitted"):
            raise _refusal("thinking.display", "must be summarized (all of it is sent) or omitted")


class MessagesBody(CountTokensBody, kw_only=True):
    """``POST /v1/messages``."""

    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    metadata: Metadata | None = None

    def check(self) -> None:
        CountTokensBody.check(self)
        budget = None if self.thinking is None else self.thinking.budget_tokens
        if budget is not None and budget >= self.max_tokens:
            raise _refusal("thinking.budget_tokens", f"must be below max_tokens ({self.max_tokens})")


def _refusal(param: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"{param}: {problem}", param=param)
