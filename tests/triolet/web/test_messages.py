"""Messages as clients send them become what templates take."""

from __future__ import annotations

import pytest
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import serving
from tests.triolet.web.test_schema import chat


def test_messages_are_flattened_for_the_template() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = chat(messages=[
        {"role": "developer", "content": "rules"},
        {"role": "user", "content": parts, "name": "ann"},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": None, "annotations": []},
    ])  # fmt: skip
    assert body.message_mappings() == [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "a\nb", "name": "ann"},
        {"role": "assistant", "content": ""},
    ]


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/chat/completions/render", "/tokenize"])
async def test_their_number_has_a_limit(anyio_backend_name: str, path: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name, max_num_messages=2) as running:
        for number, status in ((2, 200), (3, 400)):
            messages = [{"role": "user", "content": "x"}] * number
            response = await running.client.post(path, json={"messages": messages})
            assert response.status_code == status
    assert response.json()["error"]["param"] == "messages"
    assert "--max-num-messages" in response.text
