"""An engine with nothing to do does nothing: no step is computed, and no thread wakes up."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tests.leaks.idle import Second

MAX_WAKE_UPS = 10
"""More in a second than without an engine; what looks around every 50 ms would have 20."""
MAX_CPU_SECONDS = 0.1
"""Of a second; a thread that waits busily takes all of it that the machine has left."""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_idle_engine_and_a_paused_one_use_no_cpu(backend: str) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "tests.leaks.idle", backend]
    output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
    seconds = {name: Second(**counts) for name, counts in json.loads(output).items()}
    without = seconds.pop("no engine")
    assert list(seconds) == ["idle", "paused"]
    for second in seconds.values():
        assert second.num_steps == 0
        assert second.num_wake_ups <= without.num_wake_ups + MAX_WAKE_UPS
        assert second.cpu_seconds <= without.cpu_seconds + MAX_CPU_SECONDS
