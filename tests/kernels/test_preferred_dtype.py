"""The number format that a device is fast at."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.kernels.cpu.variants import build_if_missing

from build_cpu import source_digest
from triolet_kernels.cpu import loader
from triolet_kernels.preferred_dtype import preferred_dtype


def test_preferred_dtype_is_one_the_kernels_take() -> None:
    assert preferred_dtype(torch.device("cpu")) in (torch.float32, torch.bfloat16)
    assert preferred_dtype(torch.device("cuda")) == torch.bfloat16


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"avx2", "avx512_bf16"}, torch.bfloat16),
        ({"avx2", "fma", "f16c"}, torch.bfloat16),  # for the sake of the int8 kernels
        ({"avx2", "fma"}, torch.float32),  # for which they were not compiled
        ({"sse2"}, torch.float32),
    ],
)
def test_preferred_dtype_of_a_cpu(
    monkeypatch: pytest.MonkeyPatch, flags: set[str], expected: torch.dtype
) -> None:
    build_if_missing()
    monkeypatch.setattr("triolet_kernels.preferred_dtype._cpu_flags", lambda: frozenset(flags))
    assert preferred_dtype(torch.device("cpu")) == expected


@pytest.mark.parametrize("is_there", [False, True])
def test_without_usable_kernels_only_native_bfloat16_is_preferred(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_there: bool
) -> None:
    path = tmp_path / "libtriolet_cpu.so"
    if is_there:
        build_if_missing()
        digest = source_digest(loader.LIBRARY_PATH.parent).encode()
        path.write_bytes(loader.LIBRARY_PATH.read_bytes().replace(digest, digest[::-1]))  # of other sources
    monkeypatch.setattr(loader, "LIBRARY_PATH", path)
    monkeypatch.setattr(
        "triolet_kernels.preferred_dtype._cpu_flags", lambda: frozenset({"avx2", "fma", "f16c"})
    )
    assert preferred_dtype(torch.device("cpu")) == torch.float32
