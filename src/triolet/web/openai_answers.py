"""What the routes of the OpenAI API, and those about tokens, answer with: the types of ``/openapi.json``.

Answers are written by the shapes of their routes, and a test holds them to these types. Knows nothing of how
they are made.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

__all__ = [
    "AssistantMessage",
    "AssistantNews",
    "CalledTool",
    "CalledToolNews",
    "ChatChoice",
    "ChatChunkChoice",
    "ChatCompletion",
    "ChatCompletionChunk",
    "ChatTokenLogprobs",
    "Completion",
    "CompletionChoice",
    "CompletionChunk",
    "CompletionChunkChoice",
    "CompletionTokenLogprobs",
    "CompletionUsage",
    "DecodedText",
    "ModelCard",
    "ModelList",
    "PromptLogprob",
    "PromptProgressTold",
    "PromptTokensDetails",
    "RenderedPrompt",
    "TokenLogprob",
    "TokenizedText",
    "ToolCallMade",
    "ToolCallNews",
    "TopLogprob",
]

Ending = Literal["stop", "length", "abort", "timeout"]


class PromptTokensDetails(Struct):
    """Of the tokens of the prompt, those found in the prefix cache."""

    cached_tokens: int


class CompletionUsage(Struct):
    """Numbers of tokens, all choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class PromptProgressTold(Struct):
    """How much of the prompt is computed: numbers of tokens, and milliseconds since it was submitted."""

    total: int
    cache: int
    processed: int
    time_ms: int


class PromptLogprob(Struct):
    """A token that might stand at a position of the prompt."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class TopLogprob(Struct):
    """One of the likeliest tokens."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A token of the answer, and the likeliest at its place."""

    top_logprobs: list[TopLogprob]


class ChatTokenLogprobs(Struct):
    """Log-probabilities of the tokens of a chat choice."""

    content: list[TokenLogprob]
    refusal: None


class CompletionTokenLogprobs(Struct):
    """Log-probabilities of the tokens of a completion, one entry of each list for each token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CalledTool(Struct):
    """The name of a tool, and its arguments as JSON."""

    name: str
    arguments: str


class ToolCallMade(Struct):
    """A call that the caller is to run."""

    id: str
    type: Literal["function"]
    function: CalledTool


class AssistantMessage(Struct):
    """The answer. ``reasoning_content`` is the older name of ``reasoning``."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ToolCallMade] | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class ChatChoice(Struct):
    """One of the answers. ``seed`` gives the same tokens again."""

    index: int
    message: AssistantMessage
    logprobs: ChatTokenLogprobs | None
    finish_reason: Ending | Literal["tool_calls"]
    stop_reason: str | int | None
    seed: int


class ChatCompletion(Struct):
    """``POST /v1/chat/completions``."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: CompletionUsage
    prompt_logprobs: PromptLogprobs | UnsetType | None = UNSET


class CalledToolNews(Struct):
    """The name comes first, then the arguments in pieces."""

    arguments: str
    name: str | UnsetType = UNSET


class ToolCallNews(Struct):
    """News of a call; only the first has its id and its type."""

    index: int
    function: CalledToolNews
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class AssistantNews(Struct):
    """What is new of a message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallNews] | UnsetType = UNSET


class ChatChunkChoice(Struct):
    """What is new of a choice; the last chunk of it has the ending."""

    index: int
    delta: AssistantNews
    logprobs: ChatTokenLogprobs | None
    finish_reason: Ending | Literal["tool_calls"] | None
    stop_reason: str | int | UnsetType | None = UNSET
    seed: int | UnsetType = UNSET


class ChatCompletionChunk(Struct):
    """The data of an event of ``POST /v1/chat/completions``, unless it is an error or ``[DONE]``."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: CompletionUsage | UnsetType | None = UNSET
    prompt_progress: PromptProgressTold | UnsetType = UNSET


class CompletionChoice(Struct):
    """One of the continuations. ``seed`` gives the same tokens again."""

    index: int
    text: str
    logprobs: CompletionTokenLogprobs | None
    finish_reason: Ending
    stop_reason: str | int | None
    seed: int
    prompt_logprobs: PromptLogprobs | UnsetType | None = UNSET


class Completion(Struct):
    """``POST /v1/completions``."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: CompletionUsage


class CompletionChunkChoice(Struct):
    """What is new of a continuation; the last chunk of it has the ending."""

    index: int
    text: str
    logprobs: CompletionTokenLogprobs | None
    finish_reason: Ending | None
    stop_reason: str | int | UnsetType | None = UNSET
    seed: int | UnsetType = UNSET


class CompletionChunk(Struct):
    """The data of an event of ``POST /v1/completions``, unless it is an error or ``[DONE]``."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChunkChoice]
    usage: CompletionUsage | UnsetType | None = UNSET
    prompt_progress: PromptProgressTold | UnsetType = UNSET


class ModelCard(Struct):
    """A name that requests may use. ``max_model_len`` is known once the model is loaded."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None
    type: Literal["model"]
    display_name: str
    created_at: str


class ModelList(Struct):
    """``GET /v1/models``; all of them are on the one page."""

    object: Literal["list"]
    data: list[ModelCard]
    has_more: bool
    first_id: str
    last_id: str


class TokenizedText(Struct):
    """``POST /tokenize``."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DecodedText(Struct):
    """``POST /detokenize``."""

    prompt: str


class RenderedPrompt(Struct):
    """``POST /v1/chat/completions/render``."""

    prompt: str
    token_ids: list[int]
    count: int
    max_model_len: int
