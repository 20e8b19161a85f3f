"""The API key."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import serving

from triolet.args import ServeArgs
from triolet.errors import UsageError
from triolet.web.app import create_app
from triolet.web.auth import resolve_api_key

pytestmark = pytest.mark.anyio
ROUTES = ["/ready", "/health", "/metrics", "/version", "/v1/models", "/v1/models/alias"]


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("Bearer wrong", 401),
        ("Bearer", 401),
        ("Basic s3cret", 401),
        ("s3cret", 401),
        ("Bearer s3cret", 200),
        ("bearer s3cret", 200),
    ],
)
async def test_every_route_but_live_asks_for_the_key(
    anyio_backend_name: str, header: str | None, status: int
) -> None:
    headers = {} if header is None else {"Authorization": header}
    async with serving(FakeEngine(), anyio_backend_name, api_key="s3cret") as running:
        for path in ROUTES:
            assert (await running.client.get(path, headers=headers)).status_code == status, path
        for path, body in (
            ("/v1/completions", {"prompt": "x"}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ):
            response = await running.client.post(path, json=body, headers=headers)
            assert response.status_code == status, path
        assert (await running.client.get("/live")).status_code == 200
    if status == 401:
        assert response.headers["WWW-Authenticate"] == "Bearer"
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert running.engine.submitted == []


def test_the_key_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIOLET_API_KEY", "from-env")
    assert resolve_api_key(None) == "from-env"
    assert resolve_api_key("given") == "given"
    monkeypatch.setenv("TRIOLET_API_KEY", "")
    assert resolve_api_key(None) is None


@pytest.mark.parametrize(
    ("environment", "options", "typed"),
    [
        ({}, {}, ""),
        ({"TRIOLET_API_KEY": "s3cret"}, {}, ""),
        ({"TRIOLET_API_KEY": "alice:s3cret bob:other"}, {}, "s3cret"),
        ({"TRIOLET_API_KEY": "unused"}, {"api_key": "s3cret"}, "s3cret"),
        ({}, {"api_key": "s3cret"}, "s3cret"),
        ({}, {"api_key_file": "alice s3cret"}, "s3cret"),
        ({}, {"admin_api_key": "s3cret"}, ""),
    ],
)
@pytest.mark.parametrize("is_another_terminal", [False, True])
async def test_the_command_for_the_user_works_wherever_the_key_is_from_and_shows_none(
    anyio_backend_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    options: dict[str, Any],
    typed: str,
    is_another_terminal: bool,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if "api_key_file" in options:
        path = tmp_path / "keys"
        path.write_text(options["api_key_file"])
        path.chmod(0o600)
        options = {"api_key_file": path}
    async with serving(FakeEngine(), anyio_backend_name, **options) as running:
        _, command = running.lines
        assert "s3cret" not in command
        given = os.environ.copy()
        if is_another_terminal and "TRIOLET_API_KEY" in given:
            del given["TRIOLET_API_KEY"]
            typed = "s3cret"
        with anyio.fail_after(30):
            answer = await anyio.run_process(["sh", "-c", command], input=typed.encode(), env=given)
    assert json.loads(answer.stdout)["choices"][0]["message"]["content"]


def test_keys_that_cannot_be_used_together_are_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIOLET_API_KEY", "s3cret")
    monkeypatch.setenv("TRIOLET_ADMIN_API_KEY", "root:s3cret")
    with pytest.raises(UsageError, match="'default' and 'root' are the same key"):
        create_app(FakeEngine())
    path = tmp_path / "keys"
    path.write_text("root other")
    path.chmod(0o600)
    with pytest.raises(UsageError, match=rf"--admin-api-key .* and --api-key-file {path}: 'root' names two"):
        create_app(FakeEngine(), ServeArgs(api_key="mine", api_key_file=path))


async def test_callers_are_told_apart_by_keys_that_are_not_told(
    anyio_backend_name: str,
) -> None:
    engine = FakeEngine()
    async with serving(engine, anyio_backend_name) as running:
        for key in ("Bearer one", "Bearer two", "Bearer one", None):
            headers = {} if key is None else {"Authorization": key}
            await running.client.post("/v1/completions", json={"prompt": "x"}, headers=headers)
    keys = [asked["options"].fairness_key for _, _, asked in engine.submitted]
    assert keys[0] == keys[2] != keys[1]
    assert keys[3] == ""
    assert "one" not in keys[0]


@pytest.mark.parametrize(("keys", "who"), [({}, ["ann", "bob"]), ({"api_key": "name:one"}, ["name", "name"])])
async def test_users_are_no_way_to_more_than_the_share_of_a_key(
    anyio_backend_name: str, keys: dict[str, Any], who: list[str]
) -> None:
    engine = FakeEngine()
    headers = {"Authorization": "Bearer one"}
    async with serving(engine, anyio_backend_name, **keys) as running:
        for user in ("ann", "bob"):
            body = {"prompt": "x", "user": user}
            await running.client.post("/v1/completions", json=body, headers=headers)
    assert [asked["options"].fairness_key for _, _, asked in engine.submitted] == who
