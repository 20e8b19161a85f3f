from __future__ import annotations

import pytest
from tests.openai_server import canned_server

from triolet.cli import main


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIOLET_API_KEY", "secret")
    with canned_server() as server:
        main(["complete", "Hi", "--url", server.url])
        main(["complete", "Hi", "--url", server.url, "--api-key", "other"])
        keys = [headers["Authorization"] for _, _, headers in server.requests]
    assert keys == ["Bearer secret", "Bearer other"]


def test_engine_options_need_offline(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["complete", "Hi", "--num-threads", "2"]) == 2
    assert "--num-threads is an option of a model loaded here: add --offline" in capsys.readouterr().err
