"""The scheduler's limits, and which requests can never be served within them.

This module knows nothing of sequences or steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from triolet.args import SchedulingPolicy, Speculation
from triolet.errors import InvalidRequestError, PromptTooLongError
from triolet.plan import MAX_PLANS_IN_FLIGHT, LayerGroup, num_blocks_needed
from triolet.request import Request

__all__ = ["MAX_PLANS_IN_FLIGHT", "SchedulerConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """The limits. Tokens for ``max_num_batched_tokens`` (a step), ``max_model_len`` (prompt plus output),
    ``block_size`` (a block), ``max_num_queued_tokens`` (prompts that wait) and
    ``long_prefill_token_threshold`` (of one prompt in a step with decodes; 0: no
    limit); counts for the others. ``row_group``: see :class:`~triolet.scheduling.speculation.Speculator`."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_queued_requests: int
    max_model_len: int
    block_size: int
    layer_groups: tuple[LayerGroup, ...]
    max_num_queued_tokens: int = 2**20
    enable_prefix_caching: bool = True
    long_prefill_token_threshold: int = 0
    scheduling_policy: SchedulingPolicy = "fcfs"
    speculation: Speculation = "off"
    num_speculative_tokens: int = 4
    row_group: int | None = None

    def num_blocks_for(self, num_tokens: int, group: LayerGroup) -> int:
        """How many blocks of a layer group a sequence of ``num_tokens`` owns at most at any time."""
        return num_blocks_needed(
            num_tokens,
            block_size=self.block_size,
            window=group.window,
            max_num_batched_tokens=self.max_num_batched_tokens,
        )

    def max_length_of(self, request: Request) -> int:
        """The most tokens, prompt and output, that the request can come to.

        Raises :class:`PromptTooLongError` when it could not end even with the whole cache to itself,
        :class:`InvalidRequestError` when it is empty.
        """
        num_prompt_tokens = len(request.prompt_token_ids)
        if num_prompt_tokens == 0:
            raise InvalidRequestError("prompt: must have at least one token", param="prompt")
        if request.max_tokens < 1:
            raise InvalidRequestError(
                f"max_tokens: must be at least 1, got {request.max_tokens}", param="max_tokens"
            )
        if num_prompt_tokens >= self.max_model_len:
            raise PromptTooLongError(
                f"prompt: has {num_prompt_tokens} tokens, which leaves no room for output in the model's "
                f"context of {self.max_model_len} tokens; shorten the prompt",
                param="prompt",
            )
        max_length = min(num_prompt_tokens + request.max_tokens, self.max_model_len)
        for group in self.layer_groups:
            num_blocks = self.num_blocks_for(max_length - 1, group)  # the last token is never computed
            if num_blocks > group.num_blocks:
                raise PromptTooLongError(
                    f"prompt: {num_prompt_tokens} tokens and max_tokens {request.max_tokens} need "
                    f"{num_blocks} KV blocks, there are {group.num_blocks}; shorten the prompt or lower "
                    "max_tokens",
                    param="prompt",
                )
        return max_length
