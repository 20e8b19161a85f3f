"""Tokens that are drawn on the device, and what becomes of them once they have come over.

At launch a token is drawn after each row, without the host. Rows that ask for more than a token have their
logits brought over beside it; those that the host chooses for have theirs adjusted there, and the token drawn
on the device is forgotten. This module knows nothing of models, caches or the order of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triolet.args import LogprobsMode
from triolet.plan import PlanRow
from triolet.request import Request, TokenLogprobs
from triolet.runtime.accelerator import Device, Fetch, send_together
from triolet.runtime.adjuster import NOT_FINITE, draft_of
from triolet.runtime.logprobs import processed_logprobs, token_logprobs
from triolet.runtime.sampler import SampledRow, Sampler
from triolet.runtime.step_memory import MAX_LOGIT_ROWS
from triolet_kernels.device_draws import DeviceDraws, DeviceDrawSettings

__all__ = ["DeviceSampler", "DrawsOnDevice", "DrawsUnderWay"]

LogitsOf = Callable[[Tensor], Tensor]


@runtime_checkable
class DrawsOnDevice(Protocol):
    """Operations that choose tokens without the host."""

    def draw_on_device(self, logits: Tensor, settings: DeviceDrawSettings, draws: DeviceDraws) -> None:
        """Draw from each row of ``logits (R, V)`` float32; see :mod:`triolet_kernels.device_draws`."""
        ...


@dataclass(frozen=True, slots=True)
class DrawsUnderWay:
    """What has been drawn after ``rows``, on its way to the host; with the logits of ``positions``.

    On the device: the last token of each row, ``last_token_ids (N,)``, and its slot, ``slots (N,)``.
    """

    rows: Sequence[PlanRow]
    positions: Sequence[int]
    fetch: Fetch
    last_token_ids: Tensor
    slots: Tensor


class DeviceSampler:
    """Draws after the rows of a step, and finishes what was drawn, a step later.

    ``host`` chooses for requests with adjustments. ``logprobs_mode``: of the others' log-probabilities.
    """

    def __init__(
        self, device: Device, ops: DrawsOnDevice, host: Sampler, *, logprobs_mode: LogprobsMode
    ) -> None:
        self._device = device
        self._ops = ops
        self._host = host
        self._is_raw = logprobs_mode == "raw"
        self._draws = DeviceDraws.allocate(MAX_LOGIT_ROWS, device.torch_device)

    # ------------------------------------------------------------------ when a step is launched

    def draw(self, hidden: Tensor, rows: Sequence[PlanRow], logits_of: LogitsOf) -> DrawsUnderWay:
        """Draw after each of ``rows``: ``hidden (P, hidden)`` are of each its last ``num_draft_tokens`` + 1
        positions. ``logits_of`` makes logits ``(…, V)`` float32 of some of them."""
        counts = [row.num_draft_tokens + 1 for row in rows]
        ends = np.cumsum(counts, dtype=np.int64)
        wanted = [
            position
            for row, end, count in zip(rows, ends.tolist(), counts, strict=True)
            if _needs_logits(row.request)
            for position in range(end - count, end)
        ]
        slots = np.array([row.slot for row in rows])
        more = [ends - 1, slots, np.array(wanted, dtype=np.int64)]
        *settings, last, slots_there, positions = send_together(self._device, [*_settings(rows), *more])
        drawn, logits = self._draw_chunks(hidden, settings, positions, wanted, logits_of)
        token_ids = drawn[0] if len(rows) == len(hidden) else drawn[0].index_select(0, last)
        fetch = self._device.fetch([*drawn, *logits])
        return DrawsUnderWay(rows, wanted, fetch, token_ids, slots_there)

    def _draw_chunks(
        self,
        hidden: Tensor,
        settings: Sequence[Tensor],
        positions: Tensor,
        wanted: Sequence[int],
        logits_of: LogitsOf,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Tokens, highest logits and numbers of kept tokens of all positions; logits of the wanted ones."""
        parts: list[list[Tensor]] = []
        logits_parts: list[Tensor] = []
        first_wanted = 0
        for first in range(0, len(hidden), MAX_LOGIT_ROWS):
            logits = logits_of(hidden[first : first + MAX_LOGIT_ROWS])
            end = first + len(logits)
            self._ops.draw_on_device(logits, DeviceDrawSettings(**_named(settings, first, end)), self._draws)
            draws = (self._draws.token_ids, self._draws.highest, self._draws.num_kept)
            parts.append([tensor[: len(logits)].clone() for tensor in draws])  # the next chunk writes there
            num_wanted = sum(first <= position < end for position in wanted)
            if num_wanted:
                here = positions[first_wanted : first_wanted + num_wanted] - first
                logits_parts.append(logits.index_select(0, here))
                first_wanted += num_wanted
        return [
            tensors[0] if len(parts) == 1 else torch.cat(tensors) for tensors in zip(*parts, strict=True)
        ], logits_parts

    # ------------------------------------------------------------------ when its result is taken

    def begin(self, rows: Sequence[PlanRow]) -> None:
        """Take note of the sequences that are new in their slots, in the rows of a plan."""
        self._host.begin(rows)

    def finish(self, draws: DrawsUnderWay) -> list[SampledRow]:
        """Wait for what was drawn; → what each row ended up with."""
        token_ids, highest, num_kept, *logits = draws.fetch.wait()
        places = {position: place for place, position in enumerate(draws.positions)}
        drawn = _Drawn(token_ids, highest, num_kept, np.concatenate(logits) if logits else None, places)
        sampled: list[SampledRow] = []
        first = 0
        for row in draws.rows:
            end = first + row.num_draft_tokens + 1
            sampled.append(
                self._choose(drawn, row, first, end)
                if row.request.is_chosen_by_host
                else self._accept(drawn, row, first)
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
            if not np.isfinite(drawn.highest[first + offset]):
                if not token_ids:
                    return SampledRow(token_ids=(0,), error=NOT_FINITE)
                break
            token_ids.append(int(drawn.token_ids[first + offset]))
            if token_ids[-1] != guess:
                break
        if row.request.num_logprobs is None:
            return SampledRow(token_ids=tuple(token_ids))
        logprobs = tuple(
            self._logprobs_at(drawn, row.request, first + offset, token_id)
            for offset, token_id in enumerate(token_ids)
        )
        return SampledRow(token_ids=tuple(token_ids), logprobs=logprobs)

    def _logprobs_at(self, drawn: _Drawn, request: Request, position: int, token_id: int) -> TokenLogprobs:
        assert request.num_logprobs is not None
        logits, highest = drawn.logits_at(position), drawn.highest[position]
        if self._is_raw:
            return token_logprobs(logits, highest, token_id, request.num_logprobs)
        return processed_logprobs(
            logits,
            highest,
            token_id,
            request.num_logprobs,
            temperature=request.temperature or 1.0,
            num_kept=int(drawn.num_kept[position]),
        )


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What has come over: arrays by position, and ``logits`` of some, at ``places``."""

    token_ids: NDArray[np.int64]
    highest: NDArray[np.float32]
    num_kept: NDArray[np.int64]
    logits: NDArray[np.float32] | None
    places: dict[int, int]

    def logits_at(self, position: int) -> NDArray[np.float32]:
        assert self.logits is not None
        row: NDArray[np.float32] = self.logits[self.places[position]]
        return row


def _needs_logits(request: Request) -> bool:
    return request.num_logprobs is not None or request.is_chosen_by_host


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
