"""Mutated bodies over a real socket: every answer is JSON, none is a server error, none hangs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import serving

pytestmark = pytest.mark.anyio

SEEDS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {
        "model": "alias", "prompt": ["a", "b"], "max_tokens": 5, "temperature": 0.5, "top_p": 0.9,
        "top_k": 3, "min_p": 0.1, "seed": 7, "stop": ["x"], "logprobs": 2, "stream": False,
        "echo": False, "n": 1, "stop_token_ids": [3], "user": "u", "logit_bias": {}, "suffix": None,
    }),
    ("/v1/chat/completions", {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "t"}], "name": "n"},
            {"role": "assistant", "content": None, "tool_calls": None},
        ],
        "max_completion_tokens": 5, "logprobs": True, "top_logprobs": 2, "stream": True,
        "stream_options": {"include_usage": True}, "tools": [], "response_format": {"type": "text"},
    }),
]  # fmt: skip

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.text(max_size=5)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def changed_bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    """A good body with some values replaced, and sometimes some bytes broken."""
    path, good = draw(st.sampled_from(SEEDS))
    body = json.loads(json.dumps(good))
    for name in draw(st.lists(st.sampled_from([*good, "nonsense"]), max_size=3)):
        body[name] = draw(VALUES)
    if "messages" in body and isinstance(body["messages"], list) and draw(st.booleans()):
        for message in body["messages"]:
            if isinstance(message, dict) and message:
                message[draw(st.sampled_from([*message, "other"]))] = draw(VALUES)
    data = bytearray(json.dumps(body).encode())
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(data) - 1))
        data[place : place + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return path, bytes(data)


@pytest.mark.slow
async def test_no_body_is_a_server_error(anyio_backend_name: str) -> None:
    cases: list[tuple[str, bytes]] = []

    @settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(changed_bodies())
    def collect(case: tuple[str, bytes]) -> None:
        cases.append(case)

    collect()
    statuses: dict[int, int] = {}
    engine = FakeEngine(reply="ok")
    async with serving(engine, anyio_backend_name) as running:
        for path, data in cases:
            response = await running.client.post(path, content=data)
            statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
            assert response.status_code in (200, 400, 404), (data, response.text)
            if response.status_code != 200:
                assert response.json()["error"]["message"], data
            elif response.headers["Content-Type"].startswith("text/event-stream"):
                assert response.text.endswith("data: [DONE]\n\n"), data
            else:
                assert response.json()["choices"], data
    assert engine.num_open == 0
    assert statuses[200] > 20
    assert statuses[400] > 20
