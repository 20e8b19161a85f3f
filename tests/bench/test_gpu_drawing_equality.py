from __future__ import annotations

import torch
from bench.gpu_drawing_equality import drawing_equality
from bench.gpu_kernels import Inputs
from torch import Tensor

from triolet_kernels.device_draws import DeviceDraws, DeviceDrawSettings
from triolet_kernels.reference import ReferenceOps


class Greedy(ReferenceOps):
    def draw_on_device(self, logits: Tensor, settings: DeviceDrawSettings, draws: DeviceDraws) -> None:
        super().draw_on_device(logits, DeviceDrawSettings.allocate(len(logits), logits.device), draws)


def test_each_case_gives_the_same_twice_and_shows_what_is_wrong() -> None:
    torch_device = torch.device("cpu")
    differing = set()
    for name, run in drawing_equality(Inputs(torch_device, torch.float32), 6, 300):
        results, again, wrong = run(ReferenceOps()), run(ReferenceOps()), run(Greedy())
        for result, other in zip(results, again, strict=True):
            assert torch.equal(result, other), name
            assert bool(result.isfinite().all()), name
        if any(not torch.equal(*pair) for pair in zip(results, wrong, strict=True)):
            differing.add(name)
    assert differing == {"draws", "log-probabilities, raw", "log-probabilities, processed"}


def test_rows_are_adjusted() -> None:
    inputs = Inputs(torch.device("cpu"), torch.float32)
    cases = dict(drawing_equality(inputs, 4, 300))
    adjusted, counts = cases["adjustments"](ReferenceOps())
    assert 0 < int((adjusted == -1e4).sum()) < adjusted.numel()
    assert int(counts.sum()) == 4 * 300 + 4
