"""A few hundred mutated requests: each gets an answer, and the server is as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fuzz.http import fuzz, fuzz_calls

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_mutated_bodies_do_no_harm(anyio_backend_name: str, byte_model: Path) -> None:
    outcomes = await fuzz(byte_model, 300, seed=0, backend=anyio_backend_name)
    statuses = {outcome.rpartition(" ")[2] for outcome in outcomes}
    assert outcomes.total() == 300
    assert {"200", "400"} <= statuses


async def test_mutated_calls_do_no_harm(anyio_backend_name: str) -> None:
    outcomes = await fuzz_calls(200, seed=0, backend=anyio_backend_name)
    assert {"200", "400", "404", "405", "501"} <= outcomes.keys()
