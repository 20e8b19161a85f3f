"""Simulate a cluster: ``python -m tests.simulation --seeds 10000``.

Each seed is a scenario of its own and happens again exactly as it did. One that fails is told with the
command that runs it alone; ``--trace`` shows what happens in it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.simulation.network import SENT
from tests.simulation.scenarios import features
from tests.simulation.simulate import SimulationError, failures_of, simulate
from tests.simulation.tickets import WrongError
from tests.simulation.world import Event

COMMAND = "python -m tests.simulation --trace --seed"
SHARE = 50
"""Seeds that a process is given at once."""


def main(arguments: Sequence[str]) -> int:
    """Run seeds; the exit code, 1 where one has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, metavar="N", help="how many")
    parser.add_argument("--start", type=int, default=0, metavar="SEED", help="the first of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="processes to use")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--trace", action="store_true", help="show what happens in it")
    parser.add_argument("--packets", action="store_true", help="and all that is sent")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return _run_one(options.seed, with_trace=options.trace, with_packets=options.packets)
    return _run_many(range(options.start, options.start + options.seeds), options.jobs)


def _run_many(seeds: range, num_jobs: int) -> int:
    num_failed, began = 0, time.perf_counter()
    shares = [seeds[start : start + SHARE] for start in range(0, len(seeds), SHARE)]
    with ProcessPoolExecutor(num_jobs, mp_context=get_context("spawn")) as pool:
        for failures in pool.map(failures_of, shares):
            num_failed += len(failures)
            for seed, problem in failures:
                print(f"seed {seed} failed: {problem}\n    {COMMAND} {seed}", flush=True)
    for feature, count in sorted(features(seeds).items()):
        print(f"{count:8}  {feature}")
    print(f"{len(seeds)} seeds in {time.perf_counter() - began:.0f} s, {num_failed} failed")
    return 1 if num_failed else 0


def _run_one(seed: int, *, with_trace: bool, with_packets: bool) -> int:
    problem: SimulationError | None = None
    try:
        events = simulate(seed)
    except SimulationError as exc:
        problem, events = exc, exc.events
    if with_trace or with_packets:
        _show(events, with_packets)
    if problem is not None:
        print(f"seed {seed} failed: {problem}")
        if not isinstance(problem.__cause__, WrongError):
            traceback.print_exception(problem)
    return 0 if problem is None else 1


def _show(events: list[Event], with_packets: bool) -> None:
    for at, kind, details in events:
        if kind != SENT or with_packets:
            print(f"{at:12.6f}  {kind:12}  {' '.join(map(str, details))}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
