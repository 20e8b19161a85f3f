"""Log-probabilities of a prompt's own tokens, made on the device and taken a step later.

They are the model's own: nothing is adjusted before a prompt. This module knows nothing of sampling, of
models or of caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from triolet.plan import PlanRow
from triolet.request import TokenLogprobs
from triolet.runtime.accelerator import Device, Fetch, send_together
from triolet.runtime.adjuster import NOT_FINITE
from triolet.runtime.device_logprobs import FetchedLogprobs, LogprobsOnDevice
from triolet.runtime.logit_rows import num_prompt_rows
from triolet.runtime.prompt_logprobs import MAX_LOGIT_ROWS, PromptLogprobs, prompt_logprobs
from triolet.sampling_params import MAX_LOGPROBS
from triolet_kernels.device_draws import DeviceDraws, DeviceLogprobs

__all__ = ["DevicePromptLogprobs"]

LogitsOf = Callable[[Tensor], Tensor]
Finish = Callable[[], PromptLogprobs]


class DevicePromptLogprobs:
    """Makes them with ``ops`` on ``device``."""

    def __init__(self, device: Device, ops: LogprobsOnDevice, vocab_size: int) -> None:
        self._device = device
        self._ops = ops
        self._vocab_size = vocab_size

    def make(self, hidden: Tensor, rows: Sequence[PlanRow], logits_of: LogitsOf) -> Finish:
        """Those of all rows that ask for them → what waits for them.

        As :func:`~triolet.runtime.prompt_logprobs.prompt_logprobs`, which makes them on the host, at once,
        where more of the most likely tokens are asked for than fit.
        """
        asking = [row for row in rows if num_prompt_rows(row)]
        if not asking or any((row.request.num_prompt_logprobs or 0) > MAX_LOGPROBS for row in asking):
            made = prompt_logprobs(hidden, rows, logits_of)
            return lambda: made
        token_ids = [token_id for row in asking for token_id in _following(row)]
        fetch = self._device.fetch(self._make(hidden, asking, token_ids, logits_of))
        return lambda: self._finish(rows, token_ids, fetch)

    def _make(
        self, hidden: Tensor, asking: Sequence[PlanRow], token_ids: Sequence[int], logits_of: LogitsOf
    ) -> list[Tensor]:
        num_top = [row.request.num_prompt_logprobs or 0 for row in asking for _ in _following(row)]
        there = send_together(
            self._device,
            [
                np.clip(np.array(token_ids, dtype=np.int64), 0, self._vocab_size - 1),
                np.array(num_top, dtype=np.int64),
            ],
        )
        chunks = [
            self._make_chunk(logits_of(part), ids, counts)
            for part, ids, counts in zip(
                *(torch.split(x, MAX_LOGIT_ROWS) for x in (hidden, *there)), strict=True
            )
        ]
        return [torch.cat(parts) for parts in zip(*chunks, strict=True)]

    def _make_chunk(self, logits: Tensor, token_ids: Tensor, num_top: Tensor) -> tuple[Tensor, ...]:
        """Tokens, log-probabilities and ranks of a few rows, and their highest logits."""
        num_rows, device = len(logits), logits.device
        draws = replace(DeviceDraws.allocate(num_rows, device), token_ids=token_ids)
        made = DeviceLogprobs.allocate(num_rows, MAX_LOGPROBS, device)
        made = replace(made, temperatures=torch.ones_like(made.temperatures), num_top=num_top)
        highest = logits.amax(dim=-1)
        self._ops.logprobs_on_device(logits, draws, made)
        return made.token_ids, made.logprobs, made.ranks, highest

    def _finish(self, rows: Sequence[PlanRow], token_ids: Sequence[int], fetch: Fetch) -> PromptLogprobs:
        *arrays, highest = fetch.wait()
        fetched, result = FetchedLogprobs(range(len(token_ids)), arrays), PromptLogprobs()

        def entries(first: int, end: int) -> Iterator[TokenLogprobs]:
            for position in range(first, end):
                if not np.isfinite(highest[position]):
                    raise ValueError(NOT_FINITE)
                if not 0 <= token_ids[position] < self._vocab_size:
                    raise ValueError(
                        f"token id {token_ids[position]} is not in the vocabulary [0, {self._vocab_size})"
                    )
                yield fetched.at(position)

        first = 0
        for index, row in enumerate(rows):
            end = first + num_prompt_rows(row)
            if end > first:
                try:
                    result.logprobs[index] = tuple(entries(first, end))
                except ValueError as error:
                    result.errors[index] = str(error)
            first = end
        return result


def _following(row: PlanRow) -> Sequence[int]:
    """The prompt's tokens whose log-probabilities a row asks for."""
    first = row.start + 1
    return row.request.prompt_token_ids[first : first + num_prompt_rows(row)]
