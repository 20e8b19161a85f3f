"""Readers of a stream that take less than is generated."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from tests.fakes import FakeRunner, fake_client

from triolet import Engine, RequestOutputKind, SamplingParams
from triolet.errors import UnreadOutputError

pytestmark = pytest.mark.anyio


async def test_what_is_left_unread_for_too_long_ends_with_its_cause(byte_model: Path) -> None:
    params = SamplingParams(max_tokens=100, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
    client = fake_client(FakeRunner())
    async with Engine(model=str(byte_model), client_factory=client, max_unread_bytes=20) as engine:
        stream = await engine.submit("abc", params)
        with anyio.fail_after(30):
            await engine.wait_idle()
        assert 20 < len((await anext(stream)).outputs[0].token_ids) < 100
        with pytest.raises(UnreadOutputError):
            await anext(stream)
