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


def thinking_limit(
    params: SamplingParams,
    reasoning: ReasoningFormat | None,
    tokenizer: Tokenizer,
    prompt_token_ids: Sequence[int],
) -> ThinkingLimit | None:
    """Where the reasoning has to end; None without a budget.

    Raises InvalidRequestError for a model that does not reason between marks, or writes their end in tokens
    which may be others beside other text: it would not be seen for certain.
    """
    if params.thinking_budget is None:
        return None
    if reasoning is None:
        raise _refusal("this model's chat template has no marks for reasoning; leave it out")
    closing = tuple(tokenizer.encode(reasoning.closing, add_special_tokens=False))
    is_spelled = len(closing) == len(reasoning.closing.encode())
    if len(closing) > 1 and closing[0] not in tokenizer.special_token_ids and not is_spelled:
        raise _refusal(f"this model has no token of its own for {reasoning.closing!r}; leave it out")
    end = tokenizer.decode(prompt_token_ids[-NUM_TOKENS_READ:], skip_special_tokens=False)
    return ThinkingLimit(
        max_tokens=params.thinking_budget,
        opening=tuple(tokenizer.encode(reasoning.opening, add_special_tokens=False)),
        closing=closing,
        is_open=reasoning.is_open_after(end),
    )


def _refusal(problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"thinking_budget: {problem}", param="thinking_budget")
