"""Routes that no model here can serve."""

from __future__ import annotations

import pytest
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import serving

from triolet.web.unserved_api import UNSERVED

pytestmark = pytest.mark.anyio


async def test_each_says_what_is_missing(anyio_backend_name: str, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        for path, needed in UNSERVED.items():
            response = await running.client.post(path, json={"input": "x"})
            error = response.json()["error"]
            assert (response.status_code, error["type"]) == (501, "not_implemented_error")
            assert path in error["message"]
            assert needed in error["message"]
        assert (await running.client.get("/v1/embeddings")).status_code == 405
    assert "request failed" not in caplog.text
