"""Log-probabilities made on the device, of those positions of a step that ask for them.

Only they come over, not the logits that they are made of. Raw ones are made of logits as they were before
adjustments: these rows are copied then. This module knows nothing of models, or how a row is drawn from.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triolet.request import Request, TokenLogprobs
from triolet.sampling_params import MAX_LOGPROBS
from triolet_kernels.device_draws import DeviceDraws, DeviceLogprobs, RowScratch

__all__ = ["ChunkLogprobs", "FetchedLogprobs", "LogprobsOnDevice", "StepLogprobs"]

Array = NDArray[Any]


class LogprobsOnDevice(Protocol):
    """Operations that make log-probabilities without the host; see :mod:`triolet_kernels.device_draws`."""

    def logprobs_on_device(
        self, logits: Tensor, draws: DeviceDraws, logprobs: DeviceLogprobs, *, is_processed: bool = False
    ) -> None:
        """Fill ``logprobs`` for what was drawn from rows of ``logits (R, V)`` float32."""
        ...


class StepLogprobs:
    """Those of a step, at ``positions`` (W of them) in ascending order, each with its request."""

    def __init__(self, asked: Sequence[tuple[int, Request]], *, is_raw: bool) -> None:
        self.positions = [position for position, _ in asked]
        self.is_raw = is_raw
        self._requests = [request for _, request in asked]
        self._parts: list[tuple[Tensor, Tensor, Tensor]] = []

    @staticmethod
    def is_made(request: Request) -> bool:
        """Whether they can be made here: so many and no more are."""
        return request.num_logprobs is not None and request.num_logprobs <= MAX_LOGPROBS

    def arrays(self) -> list[Array]:
        """What is to be sent: where, at which temperature, and of how many tokens."""
        temperatures = [1.0 if self.is_raw else request.temperature or 1.0 for request in self._requests]
        return [
            np.array(self.positions, dtype=np.int64),
            np.array(temperatures, dtype=np.float64),
            np.array([request.num_logprobs for request in self._requests], dtype=np.int64),
        ]

    def within(self, sent: Sequence[Tensor], first: int, end: int) -> ChunkLogprobs | None:
        """Those of the positions from ``first`` to before ``end``; what was ``sent`` is on the device."""
        low, high = bisect_left(self.positions, first), bisect_left(self.positions, end)
        if low == high:
            return None
        positions, temperatures, num_top = (tensor[low:high] for tensor in sent)
        return ChunkLogprobs(self, positions - first, temperatures, num_top)

    def add(self, made: DeviceLogprobs) -> None:
        self._parts.append((made.token_ids, made.logprobs, made.ranks))

    def tensors(self) -> list[Tensor]:
        """What has been made, to be brought over; nothing if nothing was."""
        return [parts[0] if len(parts) == 1 else torch.cat(parts) for parts in zip(*self._parts, strict=True)]


@dataclass(frozen=True, slots=True)
class ChunkLogprobs:
    """Some of a step, at ``places (R,)`` of a chunk of its logits."""

    step: StepLogprobs
    places: Tensor
    temperatures: Tensor
    num_top: Tensor

    def make(self, ops: LogprobsOnDevice, logits: Tensor, draws: DeviceDraws) -> None:
        """Of ``logits (R, V)``, those at ``places``, and what was drawn in the whole chunk."""
        num_rows, num_tokens = logits.shape
        scratch = RowScratch.allocate(num_rows, logits.device)

        def of_chunk(tensor: Tensor) -> Tensor:
            return tensor.index_select(0, self.places)

        drawn = DeviceDraws(
            # Where nothing could be drawn, any token will do.
            token_ids=of_chunk(draws.token_ids).clamp_(0, num_tokens - 1),
            highest=of_chunk(draws.highest),
            num_kept=of_chunk(draws.num_kept),
            masses=of_chunk(draws.masses),
            scratch=scratch,
        )
        shape = (num_rows, 1 + MAX_LOGPROBS)
        made = DeviceLogprobs(
            temperatures=self.temperatures,
            num_top=self.num_top,
            token_ids=torch.empty(shape, dtype=torch.int64, device=logits.device),
            logprobs=torch.empty(shape, dtype=torch.float32, device=logits.device),
            ranks=torch.empty(num_rows, dtype=torch.int64, device=logits.device),
            scratch=scratch,
        )
        ops.logprobs_on_device(logits, drawn, made, is_processed=not self.step.is_raw)
        self.step.add(made)


class FetchedLogprobs:
    """What has come over of a step."""

    def __init__(self, positions: Sequence[int], arrays: Iterable[Array]) -> None:
        self._places = {position: place for place, position in enumerate(positions)}
        self._arrays = list(arrays)

    def at(self, position: int) -> TokenLogprobs:
        place = self._places[position]
        token_ids, logprobs, ranks = self._arrays
        num = int((token_ids[place] >= 0).sum())
        return TokenLogprobs(
            tuple(token_ids[place, :num].tolist()), tuple(logprobs[place, :num].tolist()), int(ranks[place])
        )
