from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tests.triolet.runtime.fake_device import FakeDevice

from triolet.runtime.accelerator import send_together

ARRAYS: list[NDArray[Any]] = [
    np.arange(3, dtype=np.int64),
    np.zeros((0, 4), dtype=np.int32),
    np.arange(10, dtype=np.int32).reshape(2, 5),
    np.array([0.5]),
    np.arange(6, dtype=np.int32).reshape(2, 3).T,
]


def test_arrays_arrive_as_they_are_with_one_copy() -> None:
    device, copies = FakeDevice(), []
    device.fail = lambda: copies.append(1)
    tensors = send_together(device, ARRAYS)
    assert len(copies) == 1
    for array, tensor in zip(ARRAYS, tensors, strict=True):
        assert tensor.is_contiguous()
        assert tensor.numpy().dtype == array.dtype
        assert (tensor.numpy() == array).all()
        assert tensor.data_ptr() % 16 == 0 or not tensor.numel()


def test_same_shapes_lie_at_the_same_places() -> None:
    target = torch.zeros(4096, dtype=torch.uint8)
    first = send_together(FakeDevice(), ARRAYS, target)
    second = send_together(FakeDevice(), [array + 1 for array in ARRAYS], target)
    assert [a.data_ptr() for a in first] == [b.data_ptr() for b in second]
    assert (first[2].numpy() == ARRAYS[2] + 1).all()


def test_nothing_is_sent_as_nothing() -> None:
    assert send_together(FakeDevice(), []) == []
