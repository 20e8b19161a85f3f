"""The service on a device that computes beside the host, with the real runner and a model that is exact."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from tests.triolet.core.services import collect, request, statistics_of
from tests.triolet.runtime.fake_device import FakeDevice
from tests.triolet.runtime.toy_model import TOY_ARGS, alone, overlapped_core

from triolet.core.service import CoreService
from triolet.errors import EngineDeadError
from triolet.request import FinishReason, LogitsAdjustments, Request, TokenOutput

pytestmark = pytest.mark.anyio


class WatchedDevice(FakeDevice):
    """Notes how many steps it has whenever the host waits for one: that one, and what was launched after."""

    def __init__(self) -> None:
        super().__init__()
        self.num_launched = 0
        self.num_taken = 0
        self.under_way: list[int] = []
        self.lost_after = 10**9

    def fetch(self, *arguments: object) -> object:  # type: ignore[override]
        self.num_launched += 1
        return super().fetch(*arguments)  # type: ignore[arg-type]

    def wait_until(self, time: float) -> None:
        self.under_way.append(self.num_launched - self.num_taken)
        self.num_taken += 1
        if self.num_taken > self.lost_after:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        super().wait_until(time)


@asynccontextmanager
async def service_on(device: FakeDevice) -> AsyncIterator[CoreService]:
    async with anyio.create_task_group() as task_group:
        service = CoreService(lambda on_phase: overlapped_core(device, TOY_ARGS))
        await task_group.start(service.run)
        yield service
        await service.stop()
        task_group.cancel_scope.cancel()


def tokens_of(outputs: list[TokenOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def plain(number: int, max_tokens: int = 20) -> Request:
    """Of those used here, each says as many tokens as it may."""
    return request(number, prompt=(number, 5, 6), max_tokens=max_tokens)


async def test_the_next_step_is_there_before_the_host_waits_for_the_last() -> None:
    device = WatchedDevice()
    async with service_on(device) as service:
        service.add(*(plain(number) for number in (7, 8, 10)))
        outputs = await collect(service, 3)
        for number in (7, 8, 10):
            assert tokens_of(outputs[number]) == tokens_of(alone(plain(number)))
        assert statistics_of(service).scheduler.num_free_blocks == 24
    assert device.under_way == [2] * 19 + [1], "the last step has none after it"


async def test_rows_that_the_host_chooses_for_do_not_hold_the_others_up() -> None:
    device = WatchedDevice()
    chosen = Request(
        request_id=7,
        prompt_token_ids=(7, 8),
        max_tokens=8,
        seed=0,
        adjustments=LogitsAdjustments(processors=(lambda _, logits: -logits,)),
    )
    async with service_on(device) as service:
        service.add(chosen, plain(8))
        outputs = await collect(service, 2)
    assert tokens_of(outputs[7]) == tokens_of(alone(chosen))
    assert tokens_of(outputs[8]) == tokens_of(alone(plain(8)))
    assert device.under_way == [2] * 19 + [1]


async def test_a_request_that_leaves_under_way_gives_everything_back() -> None:
    device = WatchedDevice()
    async with service_on(device) as service:
        service.add(plain(8, 50), plain(10, 30))
        await service.get_outputs()
        service.abort(8)
        outputs = await collect(service, 1)
        assert outputs[10][-1].finish_reason is FinishReason.LENGTH
        assert statistics_of(service).scheduler.num_free_blocks == 24


async def test_a_device_that_is_lost_ends_the_service_with_its_cause() -> None:
    device = WatchedDevice()
    device.lost_after = 5

    async def ask() -> None:
        async with service_on(device) as service:
            service.add(plain(8))
            await collect(service, 1)

    with pytest.raises(BaseExceptionGroup) as caught:
        await ask()
    (lost,) = leaves(caught.value)
    assert isinstance(lost, EngineDeadError)
    assert "was lost by the device: RuntimeError: CUDA error" in str(lost)


def leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in leaves(part)]
    return [error]
