from __future__ import annotations

import subprocess
import sys
import threading

import anyio
import pytest
from tests.hygiene.source_files import ROOT

from triolet.frontend.background import run_in_background


@pytest.mark.anyio
async def test_results_and_errors_come_back() -> None:
    assert await run_in_background(lambda: threading.current_thread().name) == "background"
    with pytest.raises(ZeroDivisionError):
        await run_in_background(lambda: 1 // 0)


@pytest.mark.anyio
async def test_who_is_cancelled_does_not_wait() -> None:
    gate = threading.Event()
    with anyio.move_on_after(0.01) as scope:
        await run_in_background(gate.wait)
    assert scope.cancelled_caught
    gate.set()


def test_nor_does_the_process(anyio_backend: str) -> None:
    program = (
        "import threading, anyio\n"
        "from triolet.frontend.background import run_in_background\n"
        "async def main():\n"
        "    with anyio.move_on_after(0.01):\n"
        "        await run_in_background(threading.Event().wait)\n"
        f"anyio.run(main, backend={anyio_backend!r})\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT / "src", timeout=100, check=True)
