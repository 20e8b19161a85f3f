"""Services at work on a fake runner, and what comes out of them."""

from __future__ import annotations

from typing import Any

import anyio
from anyio.abc import TaskGroup
from tests.fakes import FakeRunner, fake_core

from triolet.core.service import CoreService
from triolet.request import Request, RequestOptions, TokenOutput
from triolet.statistics import RankStatistics

__all__ = ["collect", "hold", "release", "request", "said", "start", "statistics_of"]


def request(
    request_id: int, *, max_tokens: int = 4, prompt: tuple[int, ...] = (1, 2, 3), **options: Any
) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=prompt,
        max_tokens=max_tokens,
        seed=0,
        options=RequestOptions(**options),
    )


async def start(task_group: TaskGroup, runner: FakeRunner, depth: int) -> CoreService:
    service = CoreService(lambda on_phase: fake_core(runner), depth=depth)
    await task_group.start(service.run)
    return service


async def collect(service: CoreService, num_requests: int) -> dict[int, list[TokenOutput]]:
    """Outputs by request until that many have ended."""
    outputs: dict[int, list[TokenOutput]] = {}
    while sum(output[-1].finish_reason is not None for output in outputs.values()) < num_requests:
        for output in await service.get_outputs():
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


async def hold(runner: FakeRunner, service: CoreService, first: Request) -> None:
    """Add a request and wait until its first step is on the device."""
    runner.gate.clear()
    service.add(first)
    await anyio.to_thread.run_sync(runner.is_held.wait)


async def release(runner: FakeRunner, service: CoreService) -> None:
    """Let the step on the device go on once a pause has taken hold; beside the task that pauses."""
    while not service.is_paused:
        await anyio.lowlevel.checkpoint()
    runner.gate.set()


def said(outputs: list[TokenOutput]) -> str:
    """The tokens of a request, and in capitals how it ended."""
    text = "".join(chr(token) for output in outputs for token in output.token_ids)
    reason = outputs[-1].finish_reason
    return text + (reason.value.upper() if reason else "")


def statistics_of(service: CoreService) -> RankStatistics:
    """Of the one core there is."""
    (statistics,) = service.rank_statistics()
    return statistics
