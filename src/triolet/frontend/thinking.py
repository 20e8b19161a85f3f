"""The thinking budget of a request, in token ids of the model at hand.

This module knows neither the engine nor how logits are computed.
"""

from __future__ import annotations

from collections.abc import Sequence

from triolet.errors import InvalidRequestError
from triolet.request import ThinkingLimit
from triolet.sampling_params import SamplingParams
from triolet.text.reasoning import ReasoningFormat
from triolet.text.tokenizer import Tokenizer

__all__ = ["thinking_limit"]

NUM_TOKENS_READ = 32
"""At the end of a prompt, to see whether it opens the reasoning."""
SPACES = (" ", "\n", "\t", "\r\n", " \n", "\n ")
LONGEST_SPACE = 4
"""What a model may write before its reasoning, and how often in a row. To look at every token of a large
vocabulary would take longer than the request."""


def thinking_limit(
    params: SamplingParams,
    reasoning: ReasoningFormat | None,
    tokenizer: Tokenizer,
    prompt_token_ids: Sequence[int],
) -> ThinkingLimit | None:
    """Where the reasoning has to end; None without a budget.

    Raises InvalidRequestError for a model that does not reason between marks, or writes them in tokens
    which may be others beside other text: they would not be seen for certain.
    """
    if params.thinking_budget is None:
        return None
    if reasoning is None:
        raise _refusal("this model's chat template has no marks for reasoning; leave it out")
    end = tokenizer.decode(prompt_token_ids[-NUM_TOKENS_READ:], skip_special_tokens=False)
    return ThinkingLimit(
        max_tokens=params.thinking_budget,
        # The model may write white space at the end of a mark as one token with what comes after it.
        opening=_mark(tokenizer, reasoning.opening.rstrip()),
        closing=_mark(tokenizer, reasoning.closing),
        is_open=reasoning.is_open_after(end),
        spaces=_spaces(tokenizer),
    )


def _mark(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    token_ids = tuple(tokenizer.encode(text, add_special_tokens=False))
    is_spelled = len(token_ids) == len(text.encode())
    if len(token_ids) > 1 and token_ids[0] not in tokenizer.special_token_ids and not is_spelled:
        raise _refusal(f"this model has no token of its own for {text!r}; leave it out")
    return token_ids


def _spaces(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens in which white space is written before a mark."""
    texts = [space * count for space in SPACES for count in range(1, LONGEST_SPACE + 1)]
    token_ids = {i for text in texts for i in tokenizer.encode(text, add_special_tokens=False)}
    return tuple(sorted(i for i in token_ids if tokenizer.token_bytes([i]).isspace()))


def _refusal(problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"thinking_budget: {problem}", param="thinking_budget")
