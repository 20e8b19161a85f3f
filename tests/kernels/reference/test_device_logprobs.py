"""Log-probabilities in plain torch, beside those that the runtime makes with numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from triolet.request import TokenLogprobs
from triolet.runtime.logprobs import processed_logprobs, token_logprobs
from triolet_kernels.device_draws import DeviceDraws, DeviceDrawSettings, DeviceLogprobs
from triolet_kernels.reference import ReferenceOps

CPU = torch.device("cpu")
TEMPERATURES = (1.0, 0.5, 0.0, 1.0, 2.0)
TOP_K = (0, 3, 0, 0, 0)
NUM_TOP = (6, 6, 6, 2, 0)


def entry_of(logprobs: DeviceLogprobs, row: int) -> TokenLogprobs:
    token_ids, values = logprobs.token_ids[row].tolist(), logprobs.logprobs[row].tolist()
    number = sum(token_id >= 0 for token_id in token_ids)
    assert values[number:] == [-np.inf] * (len(values) - number)
    return TokenLogprobs(tuple(token_ids[:number]), tuple(values[:number]), int(logprobs.ranks[row]))


@pytest.mark.parametrize("size", [4, 50])
@pytest.mark.parametrize("is_processed", [False, True])
def test_they_are_those_of_the_runtime(size: int, is_processed: bool) -> None:
    logits = torch.randn(5, size)
    logits[3] = 1.0
    logits[4, 1:3] = -torch.inf
    settings, draws = DeviceDrawSettings.allocate(5, CPU), DeviceDraws.allocate(5, CPU)
    settings.temperatures.copy_(torch.tensor(TEMPERATURES))
    settings.top_k.copy_(torch.tensor(TOP_K))
    ReferenceOps().draw_on_device(logits, settings, draws)
    logprobs = DeviceLogprobs.allocate(5, 6, CPU)
    temperatures = TEMPERATURES if is_processed else [float(value > 0) for value in TEMPERATURES]
    logprobs.temperatures.copy_(torch.tensor(temperatures))
    logprobs.num_top.copy_(torch.tensor(NUM_TOP))
    logprobs.ranks.fill_(-9)
    ReferenceOps().logprobs_on_device(logits, draws, logprobs, is_processed=is_processed)
    assert logprobs.ranks[2] == -9, "nothing was asked for"
    for row in (0, 1, 3, 4):
        values, token_id, num_top = logits[row].numpy(), int(draws.token_ids[row]), min(size, NUM_TOP[row])
        expected = token_logprobs(values, values.max(), token_id, num_top)
        if is_processed:
            expected = processed_logprobs(
                values,
                values.max(),
                token_id,
                num_top,
                temperature=TEMPERATURES[row],
                num_kept=int(draws.num_kept[row]),
            )
        found = entry_of(logprobs, row)
        assert (found.token_ids, found.rank) == (expected.token_ids, expected.rank)
        np.testing.assert_allclose(found.logprobs, expected.logprobs, atol=1e-6)
