"""What drawing on a device reads and writes: tensors that stay where they are while their values change.

A captured graph holds on to addresses, so the caller makes these once, for the most rows it will ever draw
from, and fills them in place before each step: of a smaller batch, the beginning of each. The methods of
:class:`triolet_kernels.gpu.GpuOps` that work on them never wait for the device and allocate nothing:

- ``adjust_on_device(logits, adjustments)``: biases, penalties, masks, on the logits in place;
- ``draw_on_device(logits, settings, draws)``: temperature, top-k, top-p, min-p, the draw;
- ``logprobs_on_device(logits, draws, logprobs, is_processed=False)``: of the drawn token and the most likely
  ones, of the model's distribution if these logits are as they were before adjustments, or, if
  ``is_processed``, of the one that was drawn from;
- ``note_on_device(adjustments, draws.token_ids[:R])``: count the drawn tokens, for penalties.

A row with NaN or plus infinity among its logits, or with no finite one, has a ``highest`` that is not finite:
that is the flag of an error of that row alone. This module knows no kernel.

R rows, V logits each; tensors may have more rows than the logits, of which nothing is read or written. All
tensors are contiguous and on the device of the logits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

__all__ = [
    "DeviceAdjustments",
    "DeviceDrawSettings",
    "DeviceDraws",
    "DeviceLogprobs",
    "RowScratch",
    "mass_bits",
    "num_mask_words",
]

NUM_LANES = 1024
"""A row is dealt out to so many lanes, token i to lane ``i % NUM_LANES``; the maxima bound the likeliest."""
NUM_LANE_BLOCKS = 16
"""So many programs share the lanes of a row."""
NUM_PARTS = 64
"""A row is cut into so many parts, runs of tokens, each with its own sum of weights."""
MAX_CANDIDATES = 2048
"""Among so many of the likeliest tokens a filtered draw is settled without reading the row again."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceDrawSettings:
    """How to draw from each row; see :class:`triolet_kernels.ops.DrawSettings`. All are ``(R,)``.

    ``temperatures``, ``top_p``, ``min_p`` float64, ``top_k`` int64. The random number is number ``numbers``
    (int64: 0 of a token drawn at first, 1 of one drawn with a mask) of the pair of ``seeds`` and
    ``positions`` (int64), as ``triolet.runtime.random.uniforms`` makes it: Philox4x32-10.
    """

    temperatures: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seeds: Tensor
    positions: Tensor
    numbers: Tensor

    @classmethod
    def allocate(cls, num_rows: int, device: torch.device) -> Self:
        """Greedy ones."""
        integers = torch.zeros(4, num_rows, dtype=torch.int64, device=device)
        floats = torch.zeros(3, num_rows, dtype=torch.float64, device=device)
        floats[1] = 1.0
        temperatures, top_p, min_p = floats.unbind()
        top_k, seeds, positions, numbers = integers.unbind()
        return cls(
            temperatures=temperatures,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seeds=seeds,
            positions=positions,
            numbers=numbers,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowScratch:
    """What the kernels find out about R rows on the way; it says nothing to anybody else.

    ``best (R, NUM_LANE_BLOCKS)`` int64, ``lane_maxima (R, NUM_LANES)`` int32, ``part_masses (R, NUM_PARTS)``
    int64, ``candidates (R, MAX_CANDIDATES)`` int64, ``num_candidates (R,)`` int32.
    """

    best: Tensor
    lane_maxima: Tensor
    part_masses: Tensor
    candidates: Tensor
    num_candidates: Tensor

    @classmethod
    def allocate(cls, num_rows: int, device: torch.device) -> Self:
        """21 KiB a row."""

        def empty(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.empty(num_rows, *shape, dtype=dtype, device=device)

        return cls(
            best=empty(NUM_LANE_BLOCKS),
            lane_maxima=empty(NUM_LANES, dtype=torch.int32),
            part_masses=empty(NUM_PARTS),
            candidates=empty(MAX_CANDIDATES),
            num_candidates=empty(dtype=torch.int32),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceDraws:
    """What was drawn from R rows.

    ``token_ids (R,)`` int64, ``highest (R,)`` float32 and ``num_kept (R,)`` int64 are as in
    :class:`triolet_kernels.ops.DrawnTokens`; ``masses (R,)`` int64: the weight of the kept tokens, that of
    the likeliest being ``2 ** mass_bits(V)``; 0 of greedy rows.
    """

    token_ids: Tensor
    highest: Tensor
    num_kept: Tensor
    masses: Tensor
    scratch: RowScratch

    @classmethod
    def allocate(cls, num_rows: int, device: torch.device) -> Self:
        """Without values."""

        def empty(dtype: torch.dtype) -> Tensor:
            return torch.empty(num_rows, dtype=dtype, device=device)

        return cls(
            token_ids=empty(torch.int64),
            highest=empty(torch.float32),
            num_kept=empty(torch.int64),
            masses=empty(torch.int64),
            scratch=RowScratch.allocate(num_rows, device),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceLogprobs:
    """Log-probabilities of R rows, of up to N most likely tokens each.

    Read: ``temperatures (R,)`` float64, 1 for log-probabilities of the model's distribution or of a greedy
    row, 0 where none are asked for, not even of the drawn token; ``num_top (R,)`` int64 ≥ 0, at most N.
    Written: ``token_ids (R, 1 + N)`` int64 and ``logprobs (R, 1 + N)`` float32, the drawn token first, then
    the most likely ones in order, -1 and minus infinity where there are fewer; ``ranks (R,)`` int64 of the
    drawn token, from 1. Nothing is written where nothing is asked for.
    """

    temperatures: Tensor
    num_top: Tensor
    token_ids: Tensor
    logprobs: Tensor
    ranks: Tensor
    scratch: RowScratch

    @classmethod
    def allocate(cls, num_rows: int, max_top: int, device: torch.device) -> Self:
        """Nothing asked for, of at most ``max_top`` tokens beside the drawn one."""
        shape = (num_rows, 1 + max_top)
        return cls(
            temperatures=torch.zeros(num_rows, dtype=torch.float64, device=device),
            num_top=torch.zeros(num_rows, dtype=torch.int64, device=device),
            token_ids=torch.empty(shape, dtype=torch.int64, device=device),
            logprobs=torch.empty(shape, dtype=torch.float32, device=device),
            ranks=torch.empty(num_rows, dtype=torch.int64, device=device),
            scratch=RowScratch.allocate(num_rows, device),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceAdjustments:
    """What is done to each row of logits before the draw, in this order.

    1. ``biases (N,)`` float32 are added to those of ``bias_token_ids (N,)`` int32: of row r, the ones from
       ``bias_starts`` to before ``bias_ends`` (R,) int32. Minus infinity forbids a token; no token has two
       others. Those with a token in ``bias_conditions (N,)`` int32, not -1, are added only if that is the
       row's in ``last_token_ids (R,)`` int64.
    2. Penalties ``repetition``, ``frequency``, ``presence`` (R,) float32, by what row ``history_rows (R,)``
       int32 of the histories says; -1 is no penalties. ``prompt_bits (H, ceil(V / 32))`` int32: bit
       ``i % 32`` of word ``i // 32`` is set if token i is in the prompt; ``output_counts (H, V)`` int32: how
       often it is in the output.
    3. What row ``mask_rows (R,)`` int32 of ``masks (M, ceil(V / 32))`` int32 has no bit for is forbidden; -1
       is no mask. NaN and plus infinity are left to be seen.

    Histories, masks and biases may be in any order, and rows may share them; only a history that
    ``note_on_device`` is to count for belongs to one row.
    """

    bias_starts: Tensor
    bias_ends: Tensor
    bias_token_ids: Tensor
    biases: Tensor
    bias_conditions: Tensor
    last_token_ids: Tensor
    repetition: Tensor
    frequency: Tensor
    presence: Tensor
    history_rows: Tensor
    prompt_bits: Tensor
    output_counts: Tensor
    mask_rows: Tensor
    masks: Tensor

    @classmethod
    def allocate(
        cls,
        num_rows: int,
        vocab_size: int,
        device: torch.device,
        *,
        num_histories: int,
        num_masks: int,
        num_biases: int,
    ) -> Self:
        """No adjustments yet. A history takes some 4 bytes for each token of the vocabulary, a mask a bit."""

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            bias_starts=zeros(num_rows),
            bias_ends=zeros(num_rows),
            bias_token_ids=zeros(num_biases),
            biases=zeros(num_biases, dtype=torch.float32),
            bias_conditions=zeros(num_biases) - 1,
            last_token_ids=zeros(num_rows, dtype=torch.int64),
            repetition=zeros(num_rows, dtype=torch.float32) + 1,
            frequency=zeros(num_rows, dtype=torch.float32),
            presence=zeros(num_rows, dtype=torch.float32),
            history_rows=zeros(num_rows) - 1,
            prompt_bits=zeros(num_histories, num_mask_words(vocab_size)),
            output_counts=zeros(num_histories, vocab_size),
            mask_rows=zeros(num_rows) - 1,
            masks=zeros(num_masks, num_mask_words(vocab_size)),
        )

    def from_row(self, first: int) -> Self:
        """Those of the rows from ``first`` on; histories, masks and biases are the same."""
        return replace(self, **{name: getattr(self, name)[first:] for name in BY_ROW})


BY_ROW = (
    "bias_starts", "bias_ends", "last_token_ids", "repetition", "frequency", "presence", "history_rows",
    "mask_rows",
)  # fmt: skip


def num_mask_words(vocab_size: int) -> int:
    """How many 32-bit words hold a bit for each token."""
    return -(-vocab_size // 32)


def mass_bits(vocab_size: int) -> int:
    """The weight of a row's likeliest token, as a power of two: that of all tokens is below 2 ** 63.

    Weights are whole numbers, so that their sums are the same in any order.
    """
    return 62 - max(1, (vocab_size - 1).bit_length())
