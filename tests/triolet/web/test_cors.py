"""Pages of other origins."""

from __future__ import annotations

import pytest
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import serving

pytestmark = pytest.mark.anyio
PAGE = {"Origin": "https://page.example"}
PREFLIGHT = PAGE | {
    "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, x-stainless-os"
}  # fmt: skip


async def test_browsers_let_no_other_page_in_unless_asked_to(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        for response in (
            await running.client.get("/live", headers=PAGE),
            await running.client.options("/v1/completions", headers=PREFLIGHT),
        ):
            assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize("origin", ["https://page.example", "https://page.example/", "*"])
async def test_a_page_that_was_named_may_come(anyio_backend_name: str, origin: str) -> None:
    origins = ("https://other.example", origin)
    async with serving(FakeEngine(), anyio_backend_name, cors_origin=origins, api_key="k") as running:
        asked = await running.client.options("/v1/completions", headers=PREFLIGHT)
        assert (asked.status_code, asked.content) == (204, b"")
        assert asked.headers["Access-Control-Allow-Headers"] == "authorization, x-stainless-os"
        assert asked.headers["Access-Control-Allow-Methods"] == "GET, POST, DELETE"
        refused = await running.client.post("/v1/completions", headers=PAGE)
        assert refused.status_code == 401, "a preflight opens nothing"
        body = {"prompt": "x", "stream": True}
        answer = await running.client.post(
            "/v1/completions", json=body, headers=PAGE | {"Authorization": "Bearer k"}
        )
        for response in (asked, refused, answer):
            assert response.headers["Access-Control-Allow-Origin"] == PAGE["Origin"]
            assert response.headers["Vary"] == "Origin"
        exposed = answer.headers["Access-Control-Expose-Headers"]
        assert exposed.split(", ") == ["X-Request-Id", "Request-Id", "Retry-After"]
        stranger = await running.client.get("/live", headers={"Origin": "https://evil.example"})
        assert ("Access-Control-Allow-Origin" in stranger.headers) == (origin == "*")


async def test_strange_names_of_headers_are_not_repeated(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name, cors_origin="*") as running:
        headers = PREFLIGHT | {"Access-Control-Request-Headers": "x" * 2000}
        answer = await running.client.options("/live", headers=headers)
    assert answer.headers["Access-Control-Allow-Headers"] == "Authorization, Content-Type"
