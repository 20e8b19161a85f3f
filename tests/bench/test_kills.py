"""Processes fail as they are told to, and only engine processes are found."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bench.kills import engine_pids, fail

BUSY = """
import faulthandler, sys, threading
faulthandler.enable()

def step():
    print("on", flush=True)
    while True:
        pass

threading.Thread(target=step, daemon=True).start()
sys.stdin.read()
"""
PARENT = """
import subprocess, sys
children = [subprocess.Popen([sys.executable, "-c", "input()", word], stdin=subprocess.PIPE)
            for word in ("triolet.cluster.engine_process:engine", "another")]
print(children[0].pid, flush=True)
sys.stdin.read()
for child in children:
    child.communicate(b"\\n")
"""


def start(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_crash_is_in_the_thread_that_computes() -> None:
    with start(BUSY) as process:
        assert process.stdout is not None
        process.stdout.readline()
        fail(process.pid, "SIGSEGV")
        process.wait(30)
        assert process.stderr is not None
        said = process.stderr.read()
    assert process.returncode == -signal.SIGSEGV
    where = said.partition("(most recent call first):")[2].splitlines()[1]
    assert where.endswith("in step")


def test_kills_and_stops() -> None:
    with start("input()") as process:
        fail(process.pid, "SIGSTOP")
        stopped = Path(f"/proc/{process.pid}/stat")
        while stopped.read_text().rpartition(")")[2].split()[0] != "T":
            pass
        fail(process.pid, "SIGKILL")
        assert process.wait(30) == -signal.SIGKILL


@pytest.mark.parametrize("kind", ["SIGKILL", "SIGSEGV"])
def test_what_is_gone_cannot_fail(kind: str) -> None:
    with start("") as process:
        process.wait(30)
    fail(process.pid, kind)


def test_engine_processes_are_found() -> None:
    with start(PARENT) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert engine_pids(process.pid) == [pid]
        process.communicate()
