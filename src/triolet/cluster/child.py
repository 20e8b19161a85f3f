"""What every child process does first: ``python -m triolet.cluster.child ROLE LINK PARENT BACKEND``.

It asks to die with its parent, before anything that takes time; leaves signals to the parent, whose orders
come over the link; and goes at once when the link says that the parent has gone. Then ``ROLE``, a coroutine
function named ``module:function``, is run over the link, file descriptor ``LINK``. ``PARENT`` is the id of
the process that should be the parent, ``BACKEND`` the event loop.

Only the standard library is imported before the process is sure to die with its parent. This module knows
nothing of what a role does.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
from typing import NoReturn

__all__ = ["die_with_parent", "main", "set_up_process"]

PR_SET_PDEATHSIG = 1
SWITCH_INTERVAL_SECONDS = 1e-4
"""With Python's own 5 ms, a busy event loop delays each of the many operations in a step by that much."""
ORPHANED = 1
"""The exit code of a child whose parent is gone."""


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process once the thread that started it ends; leave if it has already.

    Source: prctl(2), ``PR_SET_PDEATHSIG``.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(ORPHANED)


def set_up_process(link: int) -> None:
    """Leave signals to the parent, show where a crash happened, and let no child of ours hold the link."""
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.SIG_IGN)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    os.set_inheritable(link, False)


def main(arguments: list[str]) -> NoReturn:
    """Run a role to its end; leave with exit code 0, or 1 where it failed."""
    role, link, parent, backend = arguments
    die_with_parent(int(parent))
    set_up_process(int(link))

    from triolet.cluster.role import run_role
    from triolet.openmp import wait_without_spinning

    wait_without_spinning(os.environ)

    code = run_role(role, int(link), backend)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # nobody reads it any more
            stream.flush()
    os._exit(code)  # a device thread that hangs must not keep a process that is done


if __name__ == "__main__":
    main(sys.argv[1:])
