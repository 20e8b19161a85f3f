from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from triolet.args import EngineArgs
from triolet.cluster import client as client_module
from triolet.cluster.client import ClientFactory, EngineClient, has_spare_core, open_client
from triolet.core.service import CoreService
from triolet.errors import ModelLoadError
from triolet.frontend.loading import find_model


def test_a_core_in_this_process_is_an_engine_client() -> None:
    client: type[EngineClient] = CoreService
    factory: ClientFactory = open_client
    assert client is CoreService
    assert factory is open_client


@pytest.mark.parametrize(
    ("num_cores", "num_threads", "is_spare"),
    [(1, None, False), (2, None, False), (2, 2, False), (2, 3, False), (2, 1, True), (8, None, True)],
)
def test_a_core_is_spare_that_no_thread_computes_on_or_is_one_of_many(
    monkeypatch: pytest.MonkeyPatch, num_cores: int, num_threads: int | None, is_spare: bool
) -> None:
    monkeypatch.setattr(client_module, "num_available_cores", lambda: num_cores)
    assert has_spare_core(EngineArgs(num_threads=num_threads)) is is_spare


@pytest.mark.anyio
async def test_the_model_is_loaded_when_the_client_runs_and_not_before(byte_model: Path) -> None:
    args = EngineArgs(model=str(byte_model))
    files = find_model(args, lambda phase: None)
    phases: list[str] = []
    client = open_client(args, files, phases.append)
    assert phases == []
    with pytest.raises(BaseException) as caught:  # the weights of this model are an empty file
        async with anyio.create_task_group() as task_group:
            await task_group.start(client.run)
    group = caught.value
    assert isinstance(group, ModelLoadError) or (
        isinstance(group, BaseExceptionGroup) and group.split(ModelLoadError)[0] is not None
    )
    assert phases[:2] == ["loading torch", "loading weights"]
