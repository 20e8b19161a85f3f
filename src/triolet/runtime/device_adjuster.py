"""Adjustments of logits on the device, for rows whose last token the host need not have seen.

What depends on all the output, the counts that penalties go by, is kept on the device, which counts each
token as it is drawn. The rest is sent with each step: biases, and tokens that are forbidden, some only after
a certain token, which the device has and the host perhaps not. A history that the device has not followed,
since the sequence is new in its slot or since the host chose a token of it, is sent whole.

This module knows nothing of models, caches or the order of steps, nor how a row is drawn from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triolet.plan import PlanRow
from triolet.runtime.adjuster import Adjuster
from triolet.runtime.adjustments import RowAdjuster, TokenBiases
from triolet_kernels.device_draws import DeviceAdjustments, num_mask_words

__all__ = [
    "AdjustmentsUnderWay",
    "AdjustsOnDevice",
    "DeviceAdjuster",
    "StepAdjustments",
    "history_bytes",
]

Array = NDArray[Any]
NO_ROW = -1


class AdjustsOnDevice(Protocol):
    """Operations that adjust logits without the host; see :mod:`triolet_kernels.device_draws`."""

    def adjust_on_device(self, logits: Tensor, adjustments: DeviceAdjustments) -> None:
        """Biases, penalties and masks on ``logits (R, V)`` float32, in place."""
        ...

    def note_on_device(self, adjustments: DeviceAdjustments, token_ids: Tensor) -> None:
        """Count ``token_ids (R,)``, one of each row, in the histories of the rows that have one."""
        ...


def history_bytes(max_num_seqs: int, vocab_size: int) -> int:
    """Bytes that histories and masks of so many slots take on the device, once one is wanted."""
    return max_num_seqs * 4 * (vocab_size + 2 * num_mask_words(vocab_size))


@dataclass(frozen=True, slots=True)
class _Slots:
    """Of each slot: which tokens are in the prompt, how often each is in the output, which are allowed."""

    prompt_bits: Tensor
    output_counts: Tensor
    masks: Tensor


@dataclass(frozen=True, slots=True)
class _ByPosition:
    """Of P positions; see :class:`~triolet_kernels.device_draws.DeviceAdjustments`. ``slots``: where the last
    token of each is."""

    slots: Array
    bias_starts: Array
    bias_ends: Array
    repetition: Array
    frequency: Array
    presence: Array
    history_rows: Array
    mask_rows: Array

    @classmethod
    def none(cls, slots: Array) -> _ByPosition:
        """No adjustments."""

        def full(value: int, dtype: type[np.generic]) -> Array:
            return np.full(len(slots), value, dtype=dtype)

        return cls(
            slots=slots,
            bias_starts=full(0, np.int32),
            bias_ends=full(0, np.int32),
            repetition=full(1, np.float32),
            frequency=full(0, np.float32),
            presence=full(0, np.float32),
            history_rows=full(NO_ROW, np.int32),
            mask_rows=full(NO_ROW, np.int32),
        )


@dataclass(slots=True)
class StepAdjustments:
    """What is sent with a step.

    What comes new into slots: to ``history_slots`` the ``prompt_bits``, and ``counts`` at ``count_places`` of
    the table of all counts; ``masks`` to ``mask_slots``. ``num_noted``: by slot, how many tokens of the
    output are counted there after the step.
    """

    by_position: _ByPosition
    biases: list[TokenBiases] = field(default_factory=list)
    num_biases: int = 0
    history_slots: list[int] = field(default_factory=list)
    prompt_bits: list[Array] = field(default_factory=list)
    count_places: list[Array] = field(default_factory=list)
    counts: list[Array] = field(default_factory=list)
    mask_slots: list[int] = field(default_factory=list)
    masks: list[Array] = field(default_factory=list)
    num_noted: dict[int, int] = field(default_factory=dict)

    def arrays(self) -> list[Array]:
        """All of it, in an order that :meth:`DeviceAdjuster.place` knows."""
        return [
            *(getattr(self.by_position, name) for name in _ByPosition.__slots__),
            _joined([found.token_ids for found in self.biases], np.int32),
            _joined([found.biases for found in self.biases], np.float32),
            _joined([found.last_token_ids for found in self.biases], np.int32),
            np.array(self.history_slots, dtype=np.int64),
            _joined(self.prompt_bits, np.int32),
            _joined(self.count_places, np.int64),
            _joined(self.counts, np.int32),
            np.array(self.mask_slots, dtype=np.int64),
            _joined(self.masks, np.int32),
        ]


class DeviceAdjuster:
    """Adjusts rows of logits on the device. ``adjuster`` has the histories as far as the host has seen them.

    ``last_token_ids``: on the device, of each slot, the token that was sampled last.
    """

    def __init__(
        self, ops: AdjustsOnDevice, adjuster: Adjuster, *, vocab_size: int, last_token_ids: Tensor
    ) -> None:
        self._ops = ops
        self._adjuster = adjuster
        self._vocab_size = vocab_size
        self._last_token_ids = last_token_ids
        self._slots: _Slots | None = None
        self._num_noted: dict[int, int] = {}
        self._masked: set[int] = set()

    def begin(self, rows: Sequence[PlanRow]) -> None:
        """Take note of the sequences that are new in their slots, in the rows of a plan."""
        for row in rows:
            if row.history is not None:
                self._num_noted.pop(row.slot, None)
                self._masked.discard(row.slot)

    def prepare(self, rows: Sequence[PlanRow], positions: Sequence[int], slots: Array) -> StepAdjustments:
        """What to send with a step for ``rows``, each drawn from at its one of ``positions``.

        ``slots (P,)``: of all positions.
        """
        step = StepAdjustments(_ByPosition.none(slots))
        for row, position in zip(rows, positions, strict=True):
            adjuster = self._adjuster.of(row)
            assert adjuster is not None, "what has no history is chosen by the host"
            num_output = row.start + row.num_tokens - len(row.request.prompt_token_ids)
            self._add_biases(step, position, adjuster, num_output)
            if adjuster.has_penalties:
                self._add_penalties(step, position, row, adjuster, num_output)
            if row.request.adjustments is not None and row.request.adjustments.allowed_token_ids is not None:
                step.by_position.mask_rows[position] = row.slot
                if row.slot not in self._masked:
                    step.mask_slots.append(row.slot)
                    step.masks.append(self._bits(row.request.adjustments.allowed_token_ids))
        return step

    def place(self, step: StepAdjustments, sent: Iterable[Tensor]) -> AdjustmentsUnderWay:
        """Put what has been ``sent`` where the kernels look for it. May be done again."""
        sent = iter(sent)
        by_position = list(islice(sent, len(_ByPosition.__slots__)))
        token_ids, biases, last_token_ids, history_slots, bits, places, counts, mask_slots, masks = sent
        if self._slots is None and (len(history_slots) or len(mask_slots)):
            self._slots = self._allocate(biases.device)
        if self._slots is not None:
            if len(history_slots):
                self._slots.prompt_bits.index_copy_(0, history_slots, bits.view(len(history_slots), -1))
                self._slots.output_counts.index_fill_(0, history_slots, 0)
                self._slots.output_counts.view(-1).index_copy_(0, places, counts)
            if len(mask_slots):
                self._slots.masks.index_copy_(0, mask_slots, masks.view(len(mask_slots), -1))
        return AdjustmentsUnderWay(self._ops, step, self._all(by_position, token_ids, biases, last_token_ids))

    def remember(self, adjusting: AdjustmentsUnderWay, token_ids: Tensor) -> None:
        """Count ``token_ids (P,)``, drawn at each position. Done last, since it cannot be done again."""
        step = adjusting.step
        self._masked.update(step.mask_slots)
        if step.num_noted:
            self._ops.note_on_device(adjusting.tensors, token_ids)
            self._num_noted |= step.num_noted

    def _add_biases(
        self, step: StepAdjustments, position: int, adjuster: RowAdjuster, num_output: int
    ) -> None:
        found = adjuster.token_biases(num_output - len(adjuster.history.output_token_ids))
        step.by_position.bias_starts[position] = step.num_biases
        step.num_biases += len(found.token_ids)
        step.by_position.bias_ends[position] = step.num_biases
        step.biases.append(found)

    def _add_penalties(
        self, step: StepAdjustments, position: int, row: PlanRow, adjuster: RowAdjuster, num_output: int
    ) -> None:
        adjustments, counts = row.request.adjustments, adjuster.history.counts
        assert adjustments is not None
        assert counts is not None, "penalties come with counts"
        step.by_position.repetition[position] = adjustments.repetition_penalty
        step.by_position.frequency[position] = adjustments.frequency_penalty
        step.by_position.presence[position] = adjustments.presence_penalty
        step.by_position.history_rows[position] = row.slot
        step.num_noted[row.slot] = num_output + 1
        if self._num_noted.get(row.slot) != num_output:
            assert len(adjuster.history.output_token_ids) == num_output, "the host knows what it has chosen"
            step.history_slots.append(row.slot)
            step.prompt_bits.append(self._bits(counts.token_ids[: counts.num_prompt_places]))
            step.count_places.append(row.slot * self._vocab_size + counts.token_ids)
            step.counts.append(counts.counts)

    def _bits(self, token_ids: Sequence[int] | Array) -> NDArray[np.int32]:
        """A bit for each token of the vocabulary, set for these."""
        bits = np.zeros(32 * num_mask_words(self._vocab_size), dtype=bool)
        bits[np.asarray(token_ids, dtype=np.int64)] = True
        return np.packbits(bits, bitorder="little").view(np.int32)

    def _allocate(self, device: torch.device) -> _Slots:
        num_slots, words = len(self._last_token_ids), num_mask_words(self._vocab_size)
        bits, counts, masks = (
            torch.zeros(num_slots, size, dtype=torch.int32, device=device)
            for size in (words, self._vocab_size, words)
        )
        return _Slots(bits, counts, masks)

    def _all(
        self, by_position: Sequence[Tensor], token_ids: Tensor, biases: Tensor, last_token_ids: Tensor
    ) -> DeviceAdjustments:
        slots, starts, ends, repetition, frequency, presence, history_rows, mask_rows = by_position
        none = token_ids.new_empty(0, 1)
        kept = self._slots or _Slots(none, none, none)
        return DeviceAdjustments(
            bias_starts=starts,
            bias_ends=ends,
            bias_token_ids=token_ids,
            biases=biases,
            bias_conditions=last_token_ids,
            last_token_ids=self._last_token_ids.index_select(0, slots),
            repetition=repetition,
            frequency=frequency,
            presence=presence,
            history_rows=history_rows,
            prompt_bits=kept.prompt_bits,
            output_counts=kept.output_counts,
            mask_rows=mask_rows,
            masks=kept.masks,
        )


@dataclass(frozen=True, slots=True)
class AdjustmentsUnderWay:
    """Those of a step, on the device."""

    ops: AdjustsOnDevice
    step: StepAdjustments
    tensors: DeviceAdjustments

    def apply(self, logits: Tensor, first: int) -> None:
        """Adjust the logits of the positions from ``first`` on, in place."""
        self.ops.adjust_on_device(logits, self.tensors.from_row(first))


def _joined(parts: Sequence[Array], dtype: type[np.generic]) -> Array:
    return np.concatenate(parts, dtype=dtype) if parts else np.empty(0, dtype=dtype)
