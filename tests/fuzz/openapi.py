"""schemathesis over the server's own document: what it says may be sent, and what it says of the answers.

    python -m tests.fuzz.openapi --seconds 600

It makes requests of every route from ``/openapi.json``, right ones and wrong ones, and holds the answers to
it. Right ones must be taken, but for the cases that :mod:`tests.fuzz.openapi_checks` lists. Routes that take
the server away, and those that say that they are not served, are left out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import anyio
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import serving

__all__ = ["main", "run"]

CHECKS = "tests.fuzz.openapi_checks"
CHECKED_ELSEWHERE = ("positive_data_acceptance", "allow_header_conformance")
"""What is taken the checks of our own look at. /v1/responses/input_tokens is also what one response could be
called, so that OPTIONS has the methods of both routes: those of any route a test looks at."""
LEFT_OUT = ("/drain", "/pause", "/sleep", "/restart_rank")


async def run(seconds: int, *, seed: int, backend: str) -> tuple[int, str]:
    """The exit code of schemathesis, 0 where it has found nothing, and what it has said."""
    async with serving(FakeEngine(reply="abc"), backend, admin_api_key="root") as running:
        url = f"{running.client.base_url}/openapi.json"
        with tempfile.TemporaryDirectory() as folder:
            done = await anyio.run_process(
                _command(url, seconds, seed),
                check=False, cwd=folder, stderr=subprocess.STDOUT, env=_environment(),
            )  # fmt: skip
        assert (await running.client.get("/health")).is_success
        assert running.engine.num_open == 0
    return done.returncode, done.stdout.decode(errors="replace")


def _environment() -> dict[str, str]:
    """The command runs elsewhere, and loads the checks by their name."""
    path = [str(Path(__file__).parents[2]), *filter(None, sys.path)]
    return {**os.environ, "SCHEMATHESIS_HOOKS": CHECKS, "PYTHONPATH": os.pathsep.join(path)}


def _command(url: str, seconds: int, seed: int) -> list[str]:
    left_out = [option for path in LEFT_OUT for option in ("--exclude-path", path)]
    return [
        sys.executable, "-m", "schemathesis.cli", "run", url, "--header", "Authorization: Bearer root",
        "--phases", "examples,coverage,fuzzing", "--max-time", str(seconds), "--seed", str(seed),
        "--exclude-checks", ",".join(CHECKED_ELSEWHERE), "--exclude-tag", "not served", *left_out,
        "--continue-on-failure", "--no-color", "--warnings", "off",
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="schemathesis over the server's own document.")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", choices=("asyncio", "trio"), default="asyncio")
    options = parser.parse_args()

    async def fuzz() -> tuple[int, str]:
        return await run(options.seconds, seed=options.seed, backend=options.backend)

    code, told = anyio.run(fuzz, backend=options.backend)
    print(told)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
