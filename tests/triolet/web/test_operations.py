"""``/live``, ``/ready``, ``/health``, ``/metrics``, ``/version`` in every state of the engine."""

from __future__ import annotations

import re

import pytest
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import serving

import triolet
from triolet.statistics import EngineState, RankHealth, RankState, RankStatistics

pytestmark = pytest.mark.anyio


async def test_a_server_that_serves_says_so(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        for path in ("/live", "/ready", "/health"):
            assert (await running.client.get(path)).status_code == 200
        assert (await running.client.get("/health")).json()["state"] == "ready"
        assert (await running.client.get("/version")).json() == {"version": triolet.__version__}
        metrics = await running.client.get("/metrics")
    assert metrics.headers["Content-Type"].startswith("text/plain")
    assert 'triolet_num_requests_running{engine="0",model_name="fake/model"} 0.0' in metrics.text


async def test_health_tells_whether_requests_wait_for_somebody(anyio_backend_name: str) -> None:
    engine = FakeEngine()
    async with serving(engine, anyio_backend_name) as running:
        for is_paused, is_sleeping in ((False, False), (True, False), (True, True)):
            engine.is_paused, engine.is_sleeping = is_paused, is_sleeping
            told = await running.client.get("/health")
            assert told.status_code == 200
            assert (told.json()["is_paused"], told.json()["is_sleeping"]) == (is_paused, is_sleeping)


async def test_numbers_are_brought_up_to_date_before_they_are_told(anyio_backend_name: str) -> None:
    engine = FakeEngine()
    async with serving(engine, anyio_backend_name) as running:
        for num_asked, path in enumerate(("/metrics", "/load"), start=1):
            await running.client.get(path)
            assert engine.num_refreshed == num_asked


@pytest.mark.parametrize(("other", "status"), [(RankState.READY, 200), (RankState.STARTING, 503)])
async def test_a_degraded_engine_serves_as_long_as_one_rank_does(
    other: RankState, status: int, anyio_backend_name: str
) -> None:
    engine = FakeEngine()
    async with serving(engine, anyio_backend_name) as running:
        engine.state = EngineState.DEGRADED
        down = RankStatistics(rank=0, state=RankState.DOWN, num_restarts=1, cause="killed by SIGKILL")
        engine.ranks = (RankHealth.of(down), RankHealth.of(RankStatistics(rank=1, state=other)))
        ready = await running.client.get("/ready")
        assert ready.status_code == status
        health = await running.client.get("/health")
        assert (health.status_code, health.json()["state"]) == (status, "degraded")
        told = health.json()["ranks"]
        assert [rank["state"] for rank in told] == ["down", other.value]
        assert told[0]["cause"] == "killed by SIGKILL"


async def test_the_load_tells_how_busy_the_engine_is(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        assert (await running.client.get("/load")).json() == {
            "server_load": 0, "num_requests_running": 0, "num_requests_waiting": 0, "kv_cache_usage": 0.25
        }  # fmt: skip


async def test_http_answers_while_the_model_loads(anyio_backend_name: str) -> None:
    engine = FakeEngine(is_loading_held=True)
    async with serving(engine, anyio_backend_name, is_ready=False) as running:
        assert (await running.client.get("/live")).status_code == 200
        ready = await running.client.get("/ready")
        assert (ready.status_code, ready.headers["Retry-After"]) == (503, "1")
        assert ready.json() == {"status": "starting", "phase": "loading weights", "phase_seconds": 1.5}
        health = await running.client.get("/health")
        assert (health.status_code, health.json()["state"]) == (503, "starting")
        assert health.json()["is_paused"] is health.json()["is_sleeping"] is None, "nobody can say yet"
        assert (await running.client.get("/metrics")).status_code == 200
        refused = await running.client.post("/v1/completions", json={"prompt": "x"})
        assert refused.status_code == 503
        assert "loading weights" in refused.json()["error"]["message"]
        assert running.lines == []
        engine.finish_loading()
        await engine.wait_ready()
        assert (await running.client.get("/ready")).status_code == 200
    assert re.search(
        r"is ready at http://127\.0\.0\.1:\d+ \(a page for browsers; OpenAI base", running.lines[0]
    )
    assert running.lines[1].startswith("curl http://127.0.0.1")
