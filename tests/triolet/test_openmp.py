"""Threads of torch sleep while they wait, where the process is ours and nobody said otherwise."""

from __future__ import annotations

import subprocess
import sys

import pytest

from triolet.openmp import wait_without_spinning


def test_what_the_user_says_holds() -> None:
    environment = {"OMP_WAIT_POLICY": "active"}
    wait_without_spinning(environment)
    assert environment == {"OMP_WAIT_POLICY": "active"}
    environment = {}
    wait_without_spinning(environment)
    assert environment == {"OMP_WAIT_POLICY": "passive"}


@pytest.mark.parametrize(("code", "policy"), [("triolet", None), ("triolet.cli", "passive")])
def test_the_library_leaves_the_environment_alone_and_the_command_line_does_not(
    code: str, policy: str | None
) -> None:
    script = (
        f"import os, {code}\n"
        f"if {code!r} == 'triolet.cli': {code}.main(['models', '--nonsense'])\n"
        "assert 'torch' not in __import__('sys').modules\n"
        "print(os.environ.get('OMP_WAIT_POLICY'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.split()[-1] == str(policy)
