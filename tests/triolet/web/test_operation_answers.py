"""What the routes for those who run the server answer is what the document says."""

from __future__ import annotations

import pytest
from tests.triolet.web.documented import check_documented
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import serving

from triolet.statistics import RankHealth, RankState

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
ADMIN = {"Authorization": "Bearer root"}
READ = (
    "/live", "/ready", "/health", "/metrics", "/load", "/version", "/openapi.json", "/docs", "/",
    "/page/main.js", "/page/nothing", "/is_paused", "/is_sleeping",
)  # fmt: skip
DONE = ("/pause", "/resume", "/sleep", "/wake_up", "/reset_prefix_cache", "/drain", "/v1/embeddings")


async def test_what_operators_ask(anyio_backend_name: str) -> None:
    engine = FakeEngine()
    engine.ranks = (
        RankHealth(
            rank=0, state=RankState.READY, num_running=1, num_waiting=2, kv_usage=0.5, num_restarts=0,
            last_step_age=None, cause=None,
        ),
    )  # fmt: skip
    async with serving(engine, anyio_backend_name, admin_api_key="root") as running:
        running.client.headers.update(ADMIN)
        for path in READ:
            check_documented(await running.client.get(path))
        check_documented(await running.client.post("/abort_requests", json={"request_ids": "all"}))
        check_documented(await running.client.post("/restart_rank", json={"rank": 0}))
        for path in DONE:
            check_documented(await running.client.post(path))


async def test_a_server_that_is_not_ready(anyio_backend_name: str) -> None:
    engine = FakeEngine(is_loading_held=True)
    async with serving(engine, anyio_backend_name, is_ready=False) as running:
        for path in ("/ready", "/health", "/v1/models", "/load"):
            check_documented(await running.client.get(path))
        refused = await running.client.post("/v1/completions", json={"prompt": "a"})
    assert refused.status_code == 503
    check_documented(refused)
