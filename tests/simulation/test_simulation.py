"""Simulated clusters under faults: the first seeds hold, and each seed happens again exactly as it did."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest
from tests.simulation.simulate import simulate

NUM_SEEDS = 150
SHARES = 5


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_what_must_hold_holds_whatever_happens(share: int) -> None:
    for seed in range(share, NUM_SEEDS, SHARES):
        simulate(seed)


def test_a_seed_happens_again_exactly_as_it_did() -> None:
    for seed in range(5):
        assert simulate(seed) == simulate(seed)


def test_a_seed_happens_alike_in_another_process_with_other_hashes() -> None:
    seeds = range(10, 13)
    code = (
        "import hashlib; from tests.simulation.simulate import simulate\n"
        f"for seed in {seeds}: print(hashlib.sha256(repr(simulate(seed)).encode()).hexdigest())"
    )
    expected = [hashlib.sha256(repr(simulate(seed)).encode()).hexdigest() for seed in seeds]
    for hash_seed in ("1", "2"):
        told = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        assert told.split() == expected
