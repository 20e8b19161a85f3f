"""A few seconds of requests made from the server's own document."""

from __future__ import annotations

import importlib.util

import pytest
from tests.fuzz.openapi import run

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("schemathesis") is None, reason="schemathesis is not installed"
    ),
]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_document_tells_the_truth(anyio_backend_name: str) -> None:
    code, told = await run(12, seed=1, backend=anyio_backend_name)
    assert code == 0, told[-6000:]
