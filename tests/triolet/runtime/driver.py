"""Drives a runner as a scheduler would, row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tests.triolet.runtime.rows import make_row

from triolet.plan import PlanRow, StepPlan, StepResult
from triolet.request import TokenLogprobs
from triolet.runtime.runner import ModelRunner

__all__ = ["Driver"]

Guess = Callable[[list[int]], Sequence[int]]


class Driver:
    """Drives sequences through a runner, with blocks from a shuffled list."""

    def __init__(self, runner: ModelRunner) -> None:
        generator = torch.Generator().manual_seed(9)
        num_blocks = min(group.num_blocks for group in runner.layer_groups)
        self.free = torch.randperm(num_blocks, generator=generator).tolist()
        self.runner = runner
        self.num_tokens: dict[int, int] = {}
        self.num_blocks: dict[int, int] = {}

    def row(self, slot: int, token_ids: tuple[int, ...], *, is_sampled: bool, **params: Any) -> PlanRow:
        start, first = self.num_tokens.get(slot, 0), self.num_blocks.get(slot, 0)
        self.num_tokens[slot] = start + (params.get("num_tokens") or len(token_ids) or 1)
        self.num_blocks[slot] = -(-self.num_tokens[slot] // self.runner.block_size)
        added = tuple(self.free.pop() for _ in range(self.num_blocks[slot] - first))
        return make_row(
            token_ids,
            slot=slot,
            start=start,
            first_new_block=first,
            new_block_ids=added,
            more_block_ids=(added,) * (len(self.runner.layer_groups) - 1),
            is_sampled=is_sampled,
            **params,
        )

    def step(self, *rows: PlanRow) -> StepResult:
        return self.runner.execute(StepPlan(step_id=7, rows=rows))

    def generate(
        self, slot: int, prompt: tuple[int, ...], length: int, *, guess: Guess | None = None, **params: Any
    ) -> tuple[list[int], list[TokenLogprobs]]:
        """``length`` tokens of one sequence, by itself, each step with guesses at the tokens after the last.

        Without guesses the tokens fed back are left unknown.
        """
        row = self.row(slot, prompt, is_sampled=True, prompt_token_ids=prompt, history=prompt, **params)
        tokens = list(prompt)
        logprobs: list[TokenLogprobs] = []
        while True:
            result = self.step(row)
            assert result.errors == {}
            tokens += result.token_ids[0]
            logprobs += result.logprobs[0] or ()
            if len(tokens) >= len(prompt) + length:
                return tokens[len(prompt) : len(prompt) + length], logprobs[:length]
            self.num_tokens[slot] = len(tokens) - 1
            draft = tuple(guess(tokens)) if guess else ()
            given = (tokens[-1], *draft) if guess else ()
            row = self.row(
                slot, given, is_sampled=True, num_draft_tokens=len(draft), prompt_token_ids=prompt, **params
            )
