"""Every snippet of the documentation works: Python in this process, shell commands against a live server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from bench.servers import Server, running, triolet_server
from tests.hygiene.snippets import Snippet, snippets
from tests.hygiene.source_files import ROOT

pytestmark = [pytest.mark.model, pytest.mark.slow]

ADDRESS = "http://127.0.0.1:8000"
RUN_ELSEWHERE = {"README.md": "sh"}
"""The README's two commands are run by .ci/run."""


def runnable(language: str, *, is_test: bool = False) -> list[Snippet]:
    """Those in a language; of tests, or of all else."""
    return [
        snippet
        for snippet in snippets(language)
        if snippet.reason is None
        and RUN_ELSEWHERE.get(snippet.path.name) != language
        and ("def test_" in snippet.code) == is_test
    ]


@pytest.fixture(scope="module")
def live_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The real server on the default model, as a process."""
    server = triolet_server("smollm2-135m-instruct", num_threads=1, num_slots=8)
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "kernels"), str(ROOT)])
    server.environment["PYTHONPATH"] = paths
    with running(server, log=tmp_path_factory.mktemp("server") / "log"):
        yield server


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``python`` and ``triolet`` as a user would have them."""
    folder = tmp_path_factory.mktemp("bin")
    entry = "import sys; from triolet.cli import main; sys.exit(main())"
    for name, arguments in (("python", ""), ("triolet", f"-c '{entry}'")):
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def one_core(live_server: Server) -> Iterator[None]:
    """Engines take all the cores there are; two on the same cores would wait for each other."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    yield
    os.sched_setaffinity(0, cores)


@pytest.mark.parametrize("snippet", runnable("sh"), ids=str)
def test_shell(snippet: Snippet, live_server: Server, programs: Path) -> None:
    code = snippet.code.replace(ADDRESS, live_server.url.removesuffix("/v1"))
    code = code.replace("curl ", "curl -sS --fail-with-body ")
    environment = {
        **os.environ,
        **live_server.environment,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("snippet", runnable("python", is_test=True), ids=str)
def test_a_test(snippet: Snippet, tmp_path: Path) -> None:
    """As its reader runs it: by pytest, with the plugins that are installed."""
    path = tmp_path / "test_snippet.py"
    path.write_text(snippet.code)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "kernels")])}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", path],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("snippet", runnable("python"), ids=str)
def test_python(snippet: Snippet, live_server: Server) -> None:
    code = snippet.code.replace(ADDRESS, live_server.url.removesuffix("/v1"))
    namespace: dict[str, Any] = {"__name__": "snippet"}
    exec(compile(code, str(snippet), "exec"), namespace)
    if "app" in namespace:
        anyio.run(ask_every_route, namespace["app"])


async def ask_every_route(app: Any) -> None:
    """The application starts, its own routes answer, and so does the model if its routes are in it."""
    # Quart's own test_app() waits for 6 s, in which a busy machine does not load a model.
    async with app.test_app_class(app, startup_timeout=60, shutdown_timeout=60) as running_app:
        client = running_app.test_client()
        for rule in app.url_map.iter_rules():
            if rule.endpoint == "static" or rule.endpoint.startswith("triolet."):
                continue
            response = await client.get(rule.rule.replace("<word>", "rain"))
            assert response.status_code == 200
            assert await response.get_data(as_text=True)
        if "triolet" in app.blueprints:
            body = {"prompt": "Hi", "max_tokens": 2}
            response = await client.post("/llm/v1/completions", json=body)
            assert response.status_code == 200
