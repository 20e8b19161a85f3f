from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from triolet.args import ServeArgs
from triolet.cli import serve, serve_main
from triolet.cli.options import OptionParser
from triolet.cli.serve import add_arguments, serve_args
from triolet.errors import UsageError


def parse(*argv: str) -> ServeArgs:
    parser = OptionParser(prog="test")
    add_arguments(parser)
    return serve_args(parser.parse_args(argv))


def test_the_model_comes_first_or_as_a_flag() -> None:
    assert parse() == ServeArgs()
    assert parse("m.gguf", "--port", "0") == parse("--port", "0", "--model", "m.gguf")
    assert parse("m.gguf", "--model", "m.gguf").model == "m.gguf"


def test_two_models_are_one_too_many() -> None:
    with pytest.raises(UsageError, match="two models are named, 'a' and --model 'b'"):
        parse("a", "--model", "b")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_modules_are_imported_is_code_0(number: signal.Signals) -> None:
    program = (
        "import signal, sys\n"
        "from triolet.cli import serve, serve_main\n"
        f"serve._serve_of = lambda args: signal.raise_signal({int(number)})\n"
        "sys.exit(serve_main([]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_signals_mean_what_they_did_once_the_server_has_ended(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    async def served(args: ServeArgs) -> int:
        return 0

    monkeypatch.setattr(serve, "_serve_of", lambda args: served)
    assert serve_main(["--backend", backend]) == 0
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
