from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.openai_server import canned_server

from triolet.cli import main, serve_main


@pytest.mark.parametrize("entry", [main, serve_main])
def test_version(entry: object, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        entry(["--version"])  # type: ignore[operator]
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("triolet ")


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    for command in ("serve", "chat", "complete", "models"):
        assert f"    {command} " in text


def test_a_wrong_option_is_one_line_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve_main(["--port", "99999"]) == 2
    captured = capsys.readouterr()
    assert captured.err == "python -m server: port (--port) must be in [0, 65535], got 99999\n"
    assert captured.out == ""


def test_the_exit_code_tells_even_where_nothing_can_be_written() -> None:
    command = [sys.executable, "-m", "server", "--port", "-1"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with open("/dev/full", "w") as full:
        assert subprocess.run(command, stderr=full, env=environment, check=False).returncode == 2


LOGS_AND_SUCCEEDS = """
import logging, sys
from triolet.cli import serve, serve_main
serve.run = lambda _: logging.warning("a line of the log") or 0
sys.exit(serve_main([]))
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_log_that_cannot_be_written_fails_nothing(unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        subprocess.run(
            [sys.executable, "-c", LOGS_AND_SUCCEEDS],
            check=True,
            stderr=full,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": unbuffered},
        )


def test_no_command_is_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "COMMAND" in capsys.readouterr().err


def test_a_failure_is_one_line_and_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with canned_server(error=(404, {"error": {"message": "no such model"}})) as server:
        assert main(["complete", "Hi", "--url", server.url, "--model", "m"]) == 1
    assert "answered 404: no such model" in capsys.readouterr().err


def test_an_interrupt_is_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", type("Stdin", (), {"read": interrupted})())
    assert main(["complete"]) == 130


WITHOUT_STANDARD_FILES = """
import os, sys
from triolet.cli import serve_main
code = serve_main(["--port", "99999"])
has_all = None not in (sys.stdin, sys.stdout, sys.stderr)
sys.exit(not (has_all and code == 2 and os.open("/", os.O_RDONLY) > 2))
"""


def test_standard_files_that_were_closed_are_no_obstacle_and_their_numbers_go_to_nobody() -> None:
    subprocess.run(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", WITHOUT_STANDARD_FILES],
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


HELP_AND_MODULES = """
import sys
from triolet.cli import serve_main
try:
    serve_main(["--help"])
except SystemExit:
    print("HEAVY:", sorted({"torch", "quart", "hypercorn", "rich", "transformers"} & set(sys.modules)))
"""


def test_help_loads_nothing_heavy_and_is_quick() -> None:
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-c", HELP_AND_MODULES],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    after = os.times()
    assert "HEAVY: []" in done.stdout
    # 0.1 s of CPU, which a busy machine takes longer to give.
    assert after.children_user - before.children_user < 1.0
