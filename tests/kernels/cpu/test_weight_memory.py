"""Memory for packed weights: copies are equal, apart from each other, and go when nobody has them."""

from __future__ import annotations

import gc
import mmap
import weakref
from pathlib import Path

import pytest
import torch

from triolet_kernels.cpu.weight_memory import WeightMemory


def pages_from(address: int) -> list[str]:
    """The lines of the process's map about what an address belongs to."""
    with open("/proc/self/smaps") as file:
        lines = file.read().splitlines()
    heads = [index for index, line in enumerate(lines) if "-" in line.split(" ")[0] and ":" not in line[:8]]
    for head, following in zip(heads, [*heads[1:], len(lines)], strict=True):
        first, end = (int(bound, 16) for bound in lines[head].split()[0].split("-"))
        if first <= address < end:
            return lines[head:following]
    return []


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.bfloat16])
def test_copies_are_equal_and_apart(dtype: torch.dtype) -> None:
    memory = WeightMemory()
    originals = [torch.randint(0, 100, shape).to(dtype) for shape in ((3, 5), (1, 7, 2), (64, 33), (1, 1))]
    kept = [memory.keep(tensor) for tensor in originals]
    assert all(torch.equal(copy, tensor) for copy, tensor in zip(kept, originals, strict=True))
    assert all(copy.data_ptr() % 64 == 0 for copy in kept)
    kept[0].zero_()
    assert all(torch.equal(copy, tensor) for copy, tensor in zip(kept[1:], originals[1:], strict=True))


def test_parts_are_joined() -> None:
    parts = [torch.randint(0, 100, (rows, 3, 2)).int() for rows in (4, 4, 1)]
    joined = WeightMemory().join(iter(parts), 9)
    assert torch.equal(joined, torch.cat(parts))
    assert joined.data_ptr() % 64 == 0


def test_pieces_follow_each_other() -> None:
    memory = WeightMemory()
    first, second = (memory.keep(torch.ones(100, dtype=torch.uint8)) for _ in range(2))
    assert second.data_ptr() - first.data_ptr() == 128


def test_a_piece_larger_than_a_region_has_its_own() -> None:
    memory = WeightMemory()
    small, large = torch.ones(10), torch.ones(40 << 20, dtype=torch.uint8)
    kept = [memory.keep(small), memory.keep(large), memory.keep(small)]
    assert [tensor.sum().item() for tensor in kept] == [10, 40 << 20, 10]


def test_a_region_goes_with_its_last_tensor() -> None:
    memory = WeightMemory()
    one, other = memory.keep(torch.ones(10)), memory.keep(torch.ones(10))
    region = memory._region
    assert isinstance(region, weakref.ref)
    del one
    gc.collect()
    assert isinstance(region(), mmap.mmap)
    assert other.sum() == 10
    del other
    gc.collect()
    assert region() is None
    assert memory.keep(torch.ones(3)).sum() == 3


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the system has no large pages"
)
def test_large_pages_are_asked_for() -> None:
    kept = WeightMemory().keep(torch.ones(4 << 20, dtype=torch.uint8))
    flags = [line for line in pages_from(kept.data_ptr()) if line.startswith("VmFlags")]
    assert "hg" in flags[0].split()
