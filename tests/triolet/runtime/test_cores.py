"""How many cores a process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from triolet.runtime.cores import num_available_cores


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        (None, 8),
        ("max 100000", 8),
        ("250000 100000", 3),
        ("50000 100000", 1),
        ("9900000 100000", 8),
        ("?", 8),
    ],
)
def test_cores_by_affinity_and_quota(
    quota: str | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    quota_file = tmp_path / "cpu.max"
    if quota is not None:
        quota_file.write_text(quota + "\n")
    assert num_available_cores(quota_file=quota_file) == expected
