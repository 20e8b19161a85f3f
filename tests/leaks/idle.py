"""What a process does in a second in which its engine has nothing to do.

Run with the name of an event loop, as a process of its own in which nothing was done before. It writes JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio
from tests.fakes import FakeRunner, fake_client, write_byte_model

from triolet import Engine, SamplingParams
from triolet.request import RequestOptions

__all__ = ["Second"]


@dataclass(frozen=True)
class Second:
    """``cpu_seconds`` of all threads, how often one of them woke up, and the steps that were computed."""

    cpu_seconds: float
    num_wake_ups: int
    num_steps: int


async def observe(runner: FakeRunner) -> Second:
    """Let a second pass."""
    await anyio.wait_all_tasks_blocked()
    before, num_steps = resource.getrusage(resource.RUSAGE_SELF), runner.num_steps
    await anyio.sleep(1)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return Second(
        cpu_seconds=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        num_wake_ups=after.ru_nvcsw - before.ru_nvcsw,
        num_steps=runner.num_steps - num_steps,
    )


async def main(model: Path) -> dict[str, Second]:
    """Seconds without an engine, with one that has answered, and with a paused one that has a request."""
    runner = FakeRunner()
    options, params = RequestOptions(timeout=3600), SamplingParams(max_tokens=20)
    seconds = {"no engine": await observe(runner)}
    async with Engine(model=str(model), client_factory=fake_client(runner, depth=2)) as engine:
        async for _ in engine.generate("abc", params, options=options):
            pass
        seconds["idle"] = await observe(runner)
        await engine.pause("keep")
        stream = await engine.submit("abc", params, options=options)
        seconds["paused"] = await observe(runner)
        stream.abort()
    return seconds


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        model = write_byte_model(Path(folder) / "bytes")
        found = anyio.run(main, model, backend=sys.argv[1])
    json.dump({name: asdict(second) for name, second in found.items()}, sys.stdout)
