"""Where shards meet, as those know it who have no torch."""

from __future__ import annotations

import subprocess
import sys


def test_it_loads_no_torch() -> None:
    code = "import sys, triolet.runtime.shard_place; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
