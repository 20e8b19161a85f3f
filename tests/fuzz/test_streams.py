"""A few dozen random requests: what is streamed adds up to the whole answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fuzz.streams import compare, write_model

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("streams") / "bytes")


async def test_a_stream_adds_up_to_the_whole_answer(anyio_backend_name: str, model: Path) -> None:
    outcomes = await compare(model, 40, seed=0, backend=anyio_backend_name)
    assert {"stops: stop", "forced: stop", "tools: tool_calls", "echo: length"} <= outcomes.keys()
