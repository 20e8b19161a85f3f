"""Drawing one token from each row in plain torch, without looking at a value on the host.

What is drawn is what :mod:`triolet_kernels.reference.drawing` says, from the random numbers of
``triolet.runtime.random``. The whole row is sorted, whatever is asked for, so that the work is the same for
all rows. It must not know of any other implementation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from triolet_kernels.reference.drawing import MIN_TEMPERATURE

if TYPE_CHECKING:
    from triolet_kernels.device_draws import DeviceDraws, DeviceDrawSettings

__all__ = ["draw_on_device", "uniforms_on_device"]

NUM_ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL_STEPS = (0x9E3779B9, 0xBB67AE85)
LOW_32_BITS = 0xFFFFFFFF


def draw_on_device(logits: Tensor, settings: DeviceDrawSettings, draws: DeviceDraws) -> None:
    """Draw from each row of ``logits (R, V)``; ``masses`` and the scratch are left as they are."""
    num_rows, num_tokens = logits.shape
    temperatures, top_k, top_p, min_p, seeds, positions, numbers = (
        tensor[:num_rows]
        for tensor in (
            settings.temperatures, settings.top_k, settings.top_p, settings.min_p,
            settings.seeds, settings.positions, settings.numbers,
        )
    )  # fmt: skip
    highest, best = logits.max(dim=-1)
    is_random = temperatures > 0
    is_filtered = is_random & ((top_k > 0) | (top_p < 1) | (min_p > 0))
    order = torch.argsort(logits, dim=-1, descending=True, stable=True)
    by_id = torch.arange(num_tokens, device=logits.device).expand_as(order)
    order = torch.where(is_filtered[:, None], order, by_id)
    weights = _weights(logits.gather(1, order), highest, temperatures)
    running = weights.cumsum(dim=-1, dtype=torch.float64)
    num_kept = _num_kept(weights, running, top_k, top_p, min_p)
    num_kept = torch.where(is_filtered, num_kept, num_tokens)
    total = running.gather(1, num_kept[:, None] - 1)
    # Two ways to the same sum may differ in the last bit, so the target may be at or past the end.
    target = uniforms_on_device(seeds, positions, numbers)[:, None] * total
    target = torch.minimum(target, total.nextafter(torch.zeros_like(total)))
    place = torch.searchsorted(running, target, right=True).clamp(max=num_tokens - 1)
    drawn = order.gather(1, place)[:, 0]
    draws.token_ids[:num_rows] = torch.where(is_random, drawn, best)
    draws.highest[:num_rows] = highest
    draws.num_kept[:num_rows] = num_kept


def uniforms_on_device(seeds: Tensor, positions: Tensor, numbers: Tensor) -> Tensor:
    """Number ``numbers`` of each pair, in [0, 1); all int64 ``(n,)`` → float64 ``(n,)``.

    Philox4x32-10 (Salmon et al., SC 2011). Products wrap round at 64 bits, which leaves all of theirs.
    """
    counter = [*_split(positions), numbers // 2, torch.zeros_like(positions)]
    keys = list(_split(seeds))
    for _ in range(NUM_ROUNDS):
        (high_0, low_0), (high_1, low_1) = (
            _split(counter[2 * place] * multiplier)[::-1] for place, multiplier in enumerate(MULTIPLIERS)
        )
        counter = [high_1 ^ counter[1] ^ keys[0], low_1, high_0 ^ counter[3] ^ keys[1], low_0]
        keys = [(key + step) & LOW_32_BITS for key, step in zip(keys, WEYL_STEPS, strict=True)]
    is_first = numbers % 2 == 0
    upper, lower = (
        torch.where(is_first, counter[0], counter[2]),
        torch.where(is_first, counter[1], counter[3]),
    )
    # The 53 highest bits of the 64, put together so that nothing is negative on the way.
    return ((upper << 21) | (lower >> 11)).to(torch.float64) * 2.0**-53


def _split(values: Tensor) -> tuple[Tensor, Tensor]:
    """The low and the high 32 bits of each number."""
    return values & LOW_32_BITS, (values >> 32) & LOW_32_BITS


def _weights(logits: Tensor, highest: Tensor, temperatures: Tensor) -> Tensor:
    """``exp((logit - highest) / temperature)`` float32; greedy rows as if at temperature 1."""
    inverse = torch.where(temperatures > 0, 1 / temperatures.clamp(min=MIN_TEMPERATURE), 1.0)
    return ((logits - highest[:, None]) * inverse.to(torch.float32)[:, None]).exp()


def _num_kept(weights: Tensor, running: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """How many of the most likely tokens top-k, then top-p, then min-p leave; at least one."""
    num_tokens = weights.shape[1]
    by_top_k = torch.where(top_k > 0, top_k, num_tokens).clamp(max=num_tokens)
    mass = running.gather(1, by_top_k[:, None] - 1)
    by_top_p = torch.searchsorted(running, top_p[:, None] * mass)[:, 0] + 1
    by_top_p = torch.where(top_p < 1, by_top_p, num_tokens)
    by_min_p = torch.where(min_p > 0, (weights >= min_p[:, None]).sum(dim=-1), num_tokens)
    return torch.minimum(by_top_k, torch.minimum(by_top_p, by_min_p)).clamp(min=1)
