"""What the core needs of a model runner.

This module knows no implementation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from triolet.plan import LayerGroup, StepPlan, StepResult

__all__ = ["OverlappedRunner", "Runner"]


class Runner(Protocol):
    """What the core needs of a model runner."""

    @property
    def layer_groups(self) -> tuple[LayerGroup, ...]: ...
    @property
    def block_size(self) -> int: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    def execute(self, plan: StepPlan) -> StepResult: ...
    def probe(self) -> None:
        """Run a token through the model beside all that the runner keeps; raises if that does not work."""
        ...

    def release(self) -> None:
        """Give the memory of weights and KV cache back to the system; all that was in the cache is gone."""
        ...

    def restore(self, part: str) -> None:
        """Have ``weights`` or ``kv_cache`` again after :meth:`release`. Raises ModelLoadError."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class OverlappedRunner(Runner, Protocol):
    """A runner whose device computes beside the host.

    ``max_steps_under_way``: so many steps may have been launched before the result of the first is taken.
    """

    @property
    def max_steps_under_way(self) -> int: ...
    def launch(self, plan: StepPlan) -> Callable[[], StepResult]:
        """Give a step to the device without waiting for anything there; → what waits for its result.

        Plans are launched in the order in which they were made, and results are taken in that order, all on
        one thread. A step that raises here has left nothing behind and may be run again; one that raises
        when its result is taken is a failure of the device.
        """
        ...
