"""Simulate a cluster: ``python -m tests.simulation --seeds 10000``.

Each seed is a scenario of its own and happens again exactly as it did. One that fails is told with the
command that runs it alone; ``--trace`` shows what happens in it.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from collections.abc import Sequence

from tests.simulation.network import SENT
from tests.simulation.simulate import SimulationError, simulate
from tests.simulation.tickets import WrongError
from tests.simulation.world import Event

COMMAND = "python -m tests.simulation --trace --seed"


def main(arguments: Sequence[str]) -> int:
    """Run seeds; the exit code, 1 where one has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, metavar="N", help="how many")
    parser.add_argument("--start", type=int, default=0, metavar="SEED", help="the first of them")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--trace", action="store_true", help="show what happens")
    parser.add_argument("--packets", action="store_true", help="and all that is sent")
    options = parser.parse_args(arguments)
    if not options.trace:
        logging.disable(logging.CRITICAL)
    if options.seed is not None:
        options.start, options.seeds = options.seed, 1
    num_failed, began = 0, time.perf_counter()
    for seed in range(options.start, options.start + options.seeds):
        try:
            events = simulate(seed)
        except SimulationError as exc:
            num_failed += 1
            events = exc.events
            print(f"seed {seed} failed: {exc}\n    {COMMAND} {seed}", flush=True)
            if options.trace and not isinstance(exc.__cause__, WrongError):
                traceback.print_exception(exc)
        if options.trace:
            _show(events, options.packets)
    seconds = time.perf_counter() - began
    print(f"{options.seeds} seeds in {seconds:.1f} s, {num_failed} failed")
    return 1 if num_failed else 0


def _show(events: list[Event], with_packets: bool) -> None:
    for at, kind, details in events:
        if kind == SENT and not with_packets:
            continue
        print(f"{at:12.6f}  {kind:12}  {' '.join(map(str, details))}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
