from __future__ import annotations

from tests.fakes import FakeRunner, fake_core_factory
from tests.triolet.core.services import request, said

from triolet.args import EngineArgs
from triolet.core.engine_core import EngineCore, load_core
from triolet.core.step_core import StepCore, StepCoreFactory


def test_an_engine_core_runs_requests_step_by_step() -> None:
    kind: type[StepCore] = EngineCore
    loader: StepCoreFactory = load_core
    assert (kind, loader) == (EngineCore, load_core)
    factory: StepCoreFactory = fake_core_factory(FakeRunner())
    core = factory(EngineArgs(), None, lambda phase: None)  # type: ignore[arg-type]
    core.add(request(1, max_tokens=2))
    outputs = core.step() + core.step()
    assert said(outputs) == "deLENGTH"
    assert core.pause("keep") == []
    assert core.is_quiet
    core.sleep(1)
    assert core.is_sleeping
    core.wake(["weights"])
    assert core.is_sleeping
    core.wake(None)
    assert (core.is_sleeping, core.is_paused) == (False, False)
    core.close()
