"""Choosing an implementation and a number format."""

from __future__ import annotations

import torch

from triolet_kernels.ops import preferred_dtype, select_ops


def test_the_reference_can_be_asked_for() -> None:
    assert select_ops(torch.device("cpu"), is_reference=True).name == "reference"


def test_preferred_dtype_is_one_the_kernels_take() -> None:
    assert preferred_dtype(torch.device("cpu")) in (torch.float32, torch.bfloat16)
    assert preferred_dtype(torch.device("cuda")) == torch.bfloat16
