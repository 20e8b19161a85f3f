"""Tokens that are drawn on the device, and what becomes of them once they have come over.

At launch a token is drawn after each row, without the host, from logits that are adjusted there; its
log-probabilities are made there as well. Rows for which the host chooses, because of a grammar, say, have
their logits brought over, and the token drawn on the device is forgotten. This module knows nothing of
models, caches or the order of steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triolet.args import LogprobsMode
from triolet.plan import PlanRow
from triolet.request import Request, TokenLogprobs
from triolet.runtime.accelerator import Device, Fetch, send_together
from triolet.runtime.adjuster import draft_of
from triolet.runtime.device_adjuster import (
    AdjustmentsUnderWay,
    AdjustsOnDevice,
    DeviceAdjuster,
    StepAdjustments,
)
from triolet.runtime.device_logprobs import (
    ChunkLogprobs,
    FetchedLogprobs,
    LogprobsOnDevice,
    StepLogprobs,
)
from triolet.runtime.logprobs import processed_logprobs, token_logprobs
from triolet.runtime.sampler import SampledRow, Sampler
from triolet.runtime.step_memory import MAX_LOGIT_ROWS
from triolet_kernels.device_draws import DeviceDraws, DeviceDrawSettings

__all__ = ["DeviceSampler", "DrawsOnDevice", "DrawsUnderWay"]

LogitsOf = Callable[[Tensor], Tensor]


@runtime_checkable
class DrawsOnDevice(AdjustsOnDevice, LogprobsOnDevice, Protocol):
    """Operations that choose tokens without the host."""

    def draw_on_device(self, logits: Tensor, settings: DeviceDrawSettings, draws: DeviceDraws) -> None:
        """Draw from each row of ``logits (R, V)`` float32; see :mod:`triolet_kernels.device_draws`."""
        ...


@dataclass(frozen=True, slots=True)
class DrawsUnderWay:
    """What has been drawn after ``rows``, on its way to the host; with the logits of ``positions``, and the
    log-probabilities at ``logprob_positions``. ``is_chosen_by_host``: of each row.

    On the device: the tokens of all positions, ``token_ids (P,)``, the last one of each row,
    ``last_token_ids (N,)``, and its slot, ``slots (N,)``.
    """

    rows: Sequence[PlanRow]
    is_chosen_by_host: Sequence[bool]
    positions: Sequence[int]
    logprob_positions: Sequence[int]
    fetch: Fetch
    token_ids: Tensor
    last_token_ids: Tensor
    slots: Tensor
    adjusting: AdjustmentsUnderWay | None


class DeviceSampler:
    """Draws after the rows of a step, and finishes what was drawn, a step later.

    ``host`` chooses where the device cannot, and has the histories that adjustments depend on.
    ``last_token_ids``: on the device, of each slot, the token that was sampled last.
    """

    def __init__(
        self,
        device: Device,
        ops: DrawsOnDevice,
        host: Sampler,
        *,
        vocab_size: int,
        last_token_ids: Tensor,
        logprobs_mode: LogprobsMode,
    ) -> None:
        self._device = device
        self._ops = ops
        self._host = host
        self._vocab_size = vocab_size
        self._last_token_ids = last_token_ids
        self._is_raw = logprobs_mode == "raw"
        self._draws = DeviceDraws.allocate(MAX_LOGIT_ROWS, device.torch_device)
        self._adjuster = DeviceAdjuster(
            ops, host.adjuster, vocab_size=vocab_size, last_token_ids=last_token_ids
        )

    # ------------------------------------------------------------------ when a step is launched

    def begin(self, rows: Sequence[PlanRow]) -> None:
        """Take note of the sequences that are new in their slots, in a plan's rows. May be done again."""
        self._host.begin(rows)
        self._adjuster.begin(rows)

    def draw(self, hidden: Tensor, rows: Sequence[PlanRow], logits_of: LogitsOf) -> DrawsUnderWay:
        """Draw after each of ``rows``: ``hidden (P, hidden)`` are of each its last ``num_draft_tokens`` + 1
        positions. ``logits_of`` makes logits ``(…, V)`` float32 of some of them, which are overwritten.

        Nothing is remembered of it before :meth:`remember`.
        """
        step = self._prepare(rows)
        sent = iter(send_together(self._device, step.arrays()))
        settings = list(islice(sent, len(SETTING_NAMES)))
        last, slots, positions = islice(sent, 3)
        there = _StepThere(step, settings, last, slots, positions, list(islice(sent, 3)))
        if step.adjustments is not None:
            there.adjusting = self._adjuster.place(step.adjustments, sent)
        drawn, logits = self._draw_chunks(hidden, there, logits_of)
        token_ids = drawn[0].clamp(0, self._vocab_size - 1)  # a row that is not finite has drawn none
        last = token_ids if len(rows) == len(hidden) else token_ids.index_select(0, there.last)
        fetch = self._device.fetch([*drawn, *step.logprobs.tensors(), *logits])
        return DrawsUnderWay(
            rows,
            step.is_chosen_by_host,
            step.positions,
            step.logprobs.positions,
            fetch,
            token_ids,
            last,
            there.slots,
            there.adjusting,
        )

    def remember(self, draws: DrawsUnderWay) -> None:
        """Have the next step begin with what was drawn. Not before all that can fail is done."""
        if draws.adjusting is not None:
            self._adjuster.remember(draws.adjusting, draws.token_ids)
        self._last_token_ids.index_copy_(0, draws.slots, draws.last_token_ids)

    def _prepare(self, rows: Sequence[PlanRow]) -> _Step:
        counts = [row.num_draft_tokens + 1 for row in rows]
        ends = np.cumsum(counts, dtype=np.int64)
        slots = np.array([row.slot for row in rows])
        by_host = [self._is_chosen_by_host(row) for row in rows]
        wanted: list[int] = []
        asked: list[tuple[int, Request]] = []
        adjusted: list[tuple[PlanRow, int]] = []
        for row, is_by_host, end, count in zip(rows, by_host, ends.tolist(), counts, strict=True):
            if is_by_host or (row.request.num_logprobs is not None and not StepLogprobs.is_made(row.request)):
                wanted += range(end - count, end)
            elif row.request.num_logprobs is not None:
                asked += ((position, row.request) for position in range(end - count, end))
            if row.request.adjustments is not None and not is_by_host:
                adjusted.append((row, end - 1))
        adjustments = None
        if adjusted:
            adjustments = self._adjuster.prepare(
                [row for row, _ in adjusted], [position for _, position in adjusted], np.repeat(slots, counts)
            )
        logprobs = StepLogprobs(asked, is_raw=self._is_raw)
        return _Step(_settings(rows), ends - 1, slots, by_host, wanted, logprobs, adjustments)

    def _is_chosen_by_host(self, row: PlanRow) -> bool:
        """Where the host has to know all that was said, or has something to say against it; and with
        guesses, each of which would have a history of its own."""
        if row.request.adjustments is None:
            return False
        return (
            row.request.is_chosen_by_host or row.num_draft_tokens > 0 or self._host.adjuster.of(row) is None
        )

    def _draw_chunks(
        self, hidden: Tensor, step: _StepThere, logits_of: LogitsOf
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Tokens, highest logits and numbers of kept tokens of all positions; logits of the wanted ones."""
        parts: list[list[Tensor]] = []
        logits_parts: list[Tensor] = []
        for first in range(0, len(hidden), MAX_LOGIT_ROWS):
            logits = logits_of(hidden[first : first + MAX_LOGIT_ROWS])
            end = first + len(logits)
            wanted, logprobs = step.wanted_within(first, end), step.logprobs_within(first, end)
            places = [] if wanted is None else [wanted]
            places += [] if logprobs is None else [logprobs.places]
            before = [logits.index_select(0, some) for some in places if self._is_raw]
            if step.adjusting is not None:
                step.adjusting.apply(logits, first)
            kept = before or [logits.index_select(0, some) for some in places]
            self._ops.draw_on_device(
                logits, DeviceDrawSettings(**_named(step.settings, first, end)), self._draws
            )
            draws = (self._draws.token_ids, self._draws.highest, self._draws.num_kept)
            parts.append([tensor[: len(logits)].clone() for tensor in draws])  # the next chunk writes there
            if logprobs is not None:
                logprobs.make(self._ops, kept.pop(), self._draws)
            logits_parts += kept
        return [
            tensors[0] if len(parts) == 1 else torch.cat(tensors) for tensors in zip(*parts, strict=True)
        ], logits_parts

    # ------------------------------------------------------------------ when its result is taken

    def finish(self, draws: DrawsUnderWay) -> list[SampledRow]:
        """Wait for what was drawn; → what each row ended up with."""
        token_ids, highest, num_kept, *others = draws.fetch.wait()
        num_logprobs = 3 if draws.logprob_positions else 0
        logprobs = FetchedLogprobs(draws.logprob_positions, others[:num_logprobs])
        logits = others[num_logprobs:]
        places = {position: place for place, position in enumerate(draws.positions)}
        drawn = _Drawn(
            token_ids, highest, num_kept, np.concatenate(logits) if logits else None, places, logprobs
        )
        sampled: list[SampledRow] = []
        first = 0
        for row, is_by_host in zip(draws.rows, draws.is_chosen_by_host, strict=True):
            end = first + row.num_draft_tokens + 1
            sampled.append(
                self._choose(drawn, row, first, end) if is_by_host else self._accept(drawn, row, first)
            )
            first = end
        return sampled

    def _choose(self, drawn: _Drawn, row: PlanRow, first: int, end: int) -> SampledRow:
        logits = torch.from_numpy(np.stack([drawn.logits_at(position) for position in range(first, end)]))
        try:
            return self._host.sample(logits, [row], lambda some: some)[0]
        except Exception as exc:  # one row's: those beside it have been drawn
            return SampledRow(token_ids=(0,), error=f"{type(exc).__name__}: {exc}")

    def _accept(self, drawn: _Drawn, row: PlanRow, first: int) -> SampledRow:
        """Keep a row's draft tokens as far as they are what was drawn, and the token after them."""
        token_ids: list[int] = []
        for offset, guess in enumerate((*draft_of(row), None)):
            highest = drawn.highest[first + offset]
            if not np.isfinite(highest):
                if not token_ids:
                    return self._host.without_token(row, highest)
                break
            token_ids.append(int(drawn.token_ids[first + offset]))
            if token_ids[-1] != guess:
                break
        self._host.adjuster.commit(row, token_ids)
        if row.request.num_logprobs is None:
            return SampledRow(token_ids=tuple(token_ids))
        logprobs = tuple(
            self._logprobs_at(drawn, row.request, first + offset, token_id)
            for offset, token_id in enumerate(token_ids)
        )
        return SampledRow(token_ids=tuple(token_ids), logprobs=logprobs)

    def _logprobs_at(self, drawn: _Drawn, request: Request, position: int, token_id: int) -> TokenLogprobs:
        assert request.num_logprobs is not None
        if StepLogprobs.is_made(request):
            return drawn.logprobs.at(position)
        logits = drawn.logits_at(position)
        if self._is_raw:
            return token_logprobs(logits, logits.max(), token_id, request.num_logprobs)
        return processed_logprobs(
            logits,
            drawn.highest[position],
            token_id,
            request.num_logprobs,
            temperature=request.temperature or 1.0,
            num_kept=int(drawn.num_kept[position]),
        )


@dataclass(frozen=True, slots=True)
class _Step:
    """What is sent with a step, as arrays. ``last``: the last position of each row."""

    settings: list[NDArray[Any]]
    last: NDArray[np.int64]
    slots: NDArray[np.int64]
    is_chosen_by_host: list[bool]
    positions: list[int]
    logprobs: StepLogprobs
    adjustments: StepAdjustments | None

    def arrays(self) -> list[NDArray[Any]]:
        more = [self.last, self.slots, np.array(self.positions, dtype=np.int64)]
        adjustments = [] if self.adjustments is None else self.adjustments.arrays()
        return [*self.settings, *more, *self.logprobs.arrays(), *adjustments]


@dataclass(slots=True)
class _StepThere:
    """The same on the device."""

    step: _Step
    settings: list[Tensor]
    last: Tensor
    slots: Tensor
    positions: Tensor
    logprobs: list[Tensor]
    adjusting: AdjustmentsUnderWay | None = None

    def wanted_within(self, first: int, end: int) -> Tensor | None:
        """Which of the logits from position ``first`` to before ``end`` are wanted on the host."""
        low, high = (bisect_left(self.step.positions, bound) for bound in (first, end))
        return None if low == high else self.positions[low:high] - first

    def logprobs_within(self, first: int, end: int) -> ChunkLogprobs | None:
        return self.step.logprobs.within(self.logprobs, first, end)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What has come over: arrays by position, and ``logits`` of some, at ``places``."""

    token_ids: NDArray[np.int64]
    highest: NDArray[np.float32]
    num_kept: NDArray[np.int64]
    logits: NDArray[np.float32] | None
    places: dict[int, int]
    logprobs: FetchedLogprobs

    def logits_at(self, position: int) -> NDArray[np.float32]:
        assert self.logits is not None
        row: NDArray[np.float32] = self.logits[self.places[position]]
        return row


SETTING_NAMES = ("temperatures", "top_k", "top_p", "min_p", "seeds", "positions", "numbers")


def _settings(rows: Sequence[PlanRow]) -> list[NDArray[Any]]:
    """Those of the last positions of each row, in the order of ``SETTING_NAMES``.

    A position's random number belongs to the request's seed and to the position of the token that is drawn.
    """
    counts = [row.num_draft_tokens + 1 for row in rows]
    requests = [row.request for row in rows]
    firsts = np.array([row.start + row.num_tokens - row.num_draft_tokens for row in rows], dtype=np.int64)
    ends = np.cumsum(counts)
    within = np.arange(ends[-1] if counts else 0) - np.repeat(ends - counts, counts)
    by_row: list[NDArray[Any]] = [
        np.array([request.temperature for request in requests], dtype=np.float64),
        np.array([request.top_k for request in requests], dtype=np.int64),
        np.array([request.top_p for request in requests], dtype=np.float64),
        np.array([request.min_p for request in requests], dtype=np.float64),
        np.array([request.seed for request in requests], dtype=np.int64),
        firsts,
    ]
    repeated = [np.repeat(values, counts) for values in by_row]
    repeated[-1] = repeated[-1] + within
    return [*repeated, np.zeros(len(within), dtype=np.int64)]


def _named(settings: Sequence[Tensor], first: int, end: int) -> dict[str, Tensor]:
    return {name: tensor[first:end] for name, tensor in zip(SETTING_NAMES, settings, strict=True)}
