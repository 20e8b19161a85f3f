"""Log-probabilities of drawn tokens in plain torch, without looking at a value on the host.

What they are: :class:`triolet_kernels.device_draws.DeviceLogprobs`. It must not know of any other
implementation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from triolet_kernels.reference.drawing import MIN_TEMPERATURE

if TYPE_CHECKING:
    from triolet_kernels.device_draws import DeviceDraws, DeviceLogprobs

__all__ = ["logprobs_on_device"]


def logprobs_on_device(
    logits: Tensor, draws: DeviceDraws, logprobs: DeviceLogprobs, *, is_processed: bool
) -> None:
    """Fill ``logprobs`` for what was drawn from rows of ``logits (R, V)`` float32; the scratch is left."""
    num_rows, num_tokens = logits.shape
    temperatures = logprobs.temperatures[:num_rows]
    inverse = (1 / temperatures.clamp(min=MIN_TEMPERATURE)).to(torch.float32)
    scaled = (logits - logits.amax(dim=-1, keepdim=True)) * inverse[:, None]
    order = torch.argsort(scaled, dim=-1, descending=True, stable=True)
    sorted_values = scaled.gather(1, order)
    num_kept = torch.full_like(draws.num_kept[:num_rows], num_tokens)
    if is_processed:
        num_kept = draws.num_kept[:num_rows]
    is_kept = torch.arange(num_tokens, device=logits.device) < num_kept[:, None]
    masses = torch.where(is_kept, sorted_values.exp(), 0.0)
    normalizers = masses.sum(dim=-1, dtype=torch.float64, keepdim=True).log()
    drawn = draws.token_ids[:num_rows, None]
    is_drawn = order == drawn
    is_asked = temperatures > 0
    _write(logprobs.ranks, is_drawn.to(torch.int64).argmax(dim=-1) + 1, is_asked)
    is_there = is_kept & (sorted_values > -torch.inf) if is_processed else is_kept
    width = logprobs.token_ids.shape[1] - 1
    is_there = is_there[:, :width]
    is_there = is_there & (
        torch.arange(is_there.shape[1], device=logits.device) < logprobs.num_top[:num_rows, None]
    )
    missing = (0, width - is_there.shape[1])
    top = torch.nn.functional.pad(torch.where(is_there, order[:, :width], -1), missing, value=-1)
    values = torch.where(is_there, (sorted_values[:, :width] - normalizers).float(), -torch.inf)
    values = torch.nn.functional.pad(values, missing, value=-torch.inf)
    of_drawn = (scaled.gather(1, drawn) - normalizers).float()
    _write(logprobs.token_ids, torch.cat((drawn, top), dim=1), is_asked)
    _write(logprobs.logprobs, torch.cat((of_drawn, values), dim=1), is_asked)


def _write(target: Tensor, values: Tensor, is_asked: Tensor) -> None:
    """Put ``values (R, …)`` into the first rows of ``target``, but where nothing was asked for."""
    place = target[: len(values)]
    place.copy_(torch.where(is_asked.view(-1, *[1] * (values.dim() - 1)), values, place))
