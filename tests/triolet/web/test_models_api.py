"""``/v1/models``."""

from __future__ import annotations

from datetime import datetime

import pytest
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import serving

pytestmark = pytest.mark.anyio


async def test_all_names_are_listed_and_each_can_be_asked_for(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        listed = (await running.client.get("/v1/models")).json()
        one = (await running.client.get("/v1/models/fake/model")).json()
    assert listed["object"] == "list"
    assert [card["id"] for card in listed["data"]] == ["fake/model", "alias"]
    assert one == listed["data"][0]
    assert one["object"] == "model"
    assert one["max_model_len"] == 4096


async def test_the_list_is_also_a_page_of_the_messages_api(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        listed = (await running.client.get("/v1/models")).json()
    assert (listed["has_more"], listed["first_id"], listed["last_id"]) == (False, "fake/model", "alias")
    card = listed["data"][0]
    assert (card["type"], card["display_name"]) == ("model", "fake/model")
    assert datetime.fromisoformat(card["created_at"]).timestamp() == card["created"]


async def test_names_are_known_while_the_model_loads(anyio_backend_name: str) -> None:
    engine = FakeEngine(is_loading_held=True)
    async with serving(engine, anyio_backend_name, is_ready=False) as running:
        card = (await running.client.get("/v1/models/alias")).json()
        assert card["max_model_len"] is None
