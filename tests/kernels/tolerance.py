"""How close two implementations must be: relative to the largest value compared, by number format."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16)

_RELATIVE = {torch.float32: 2e-5, torch.bfloat16: 1e-2, torch.float16: 1e-3}


def assert_close(actual: Tensor, expected: Tensor) -> None:
    assert actual.shape == expected.shape
    assert torch.isfinite(actual).all()
    error = (actual.double() - expected.double()).abs().max().item()
    limit = _RELATIVE[actual.dtype] * max(1.0, expected.abs().max().item())
    assert error <= limit, f"largest error {error:.3g}, allowed {limit:.3g}"
