"""EngineCore: scheduler and model runner joined, token ids only, synchronous.

One step is three calls: ``schedule`` decides, ``execute`` computes, ``commit`` records.
:meth:`EngineCore.step` makes all three; the asynchronous service makes them apart, so that only ``execute``
runs on the device thread.

This module knows no event loop, no text and no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from triolet.args import EngineArgs
from triolet.core.containment import execute_contained
from triolet.errors import EngineDeadError
from triolet.models.source import ModelFiles
from triolet.plan import LayerGroup, StepPlan, StepResult
from triolet.request import Request, TokenOutput
from triolet.scheduling.scheduler import Scheduler, SchedulerConfig
from triolet.statistics import SchedulerStatistics

__all__ = ["CoreFactory", "EngineCore", "Runner", "build_core", "load_core"]

MAX_FAILED_STEPS = 3


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
    def close(self) -> None: ...


class EngineCore:
    """Runs requests to their end, one step at a time."""

    def __init__(self, scheduler: Scheduler, runner: Runner) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._num_failed_steps = 0
        self.max_model_len = runner.max_model_len
        self.vocab_size = runner.vocab_size

    @property
    def has_unfinished(self) -> bool:
        return self._scheduler.has_unfinished

    def add(self, request: Request) -> None:
        """Queue a request. Raises OverloadedError (queue full) or PromptTooLongError (never fits)."""
        self._scheduler.add(request)

    def abort(self, request_id: int) -> bool:
        """Take a request out, wherever it is; False if it has ended already."""
        return self._scheduler.abort(request_id)

    def schedule(self) -> StepPlan | None:
        """The next step, or None if nothing can run now."""
        return self._scheduler.schedule()

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute a step. A failure is that of the requests it happens with, not of the engine.

        Raises EngineDeadError after several steps in a row of which nothing succeeded: then it is the
        device, not a request.
        """
        result, failure = execute_contained(self._runner.execute, plan)
        if failure is None:
            self._num_failed_steps = 0
            return result
        self._num_failed_steps += 1
        if self._num_failed_steps >= MAX_FAILED_STEPS:
            raise EngineDeadError(
                f"{self._num_failed_steps} steps in a row failed, the last with {failure!r}"
            ) from failure
        return result

    def commit(self, plan: StepPlan, result: StepResult) -> list[TokenOutput]:
        """Record what a step computed and return what it produced; plans are committed in order."""
        return self._scheduler.commit(plan, result)

    def step(self) -> list[TokenOutput]:
        """One whole step; empty when there was nothing to do."""
        plan = self.schedule()
        return [] if plan is None else self.commit(plan, self.execute(plan))

    def statistics(self) -> SchedulerStatistics:
        return self._scheduler.statistics()

    def check_integrity(self) -> None:
        """Assert every invariant of the scheduler and its blocks."""
        self._scheduler.check_integrity()

    def reset(self) -> None:
        """Drop every request and all books about them, in whatever state an interrupted step left them."""
        self._scheduler = Scheduler(self._scheduler.config)

    def close(self) -> None:
        """Give weights and KV cache back."""
        self._runner.close()


CoreFactory = Callable[[EngineArgs, ModelFiles, Callable[[str], None]], EngineCore]


def load_core(args: EngineArgs, files: ModelFiles, on_phase: Callable[[str], None]) -> EngineCore:
    """Load the model and build a core around it, on the thread that will run its steps.

    ``on_phase`` is told what is being done, again and again; what it raises ends the loading.
    """
    on_phase("loading torch")
    from triolet.runtime.runner import ModelRunner  # torch takes seconds: not before it is needed

    return build_core(ModelRunner.load(files, args, on_phase), args)


def build_core(runner: Runner, args: EngineArgs) -> EngineCore:
    """A core around a model runner, with the limits that the arguments set and those that the runner has."""
    config = SchedulerConfig(
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_num_queued_requests=args.max_num_queued_requests,
        max_model_len=runner.max_model_len,
        block_size=runner.block_size,
        layer_groups=runner.layer_groups,
        enable_prefix_caching=args.enable_prefix_caching,
        long_prefill_token_threshold=args.long_prefill_token_threshold,
        scheduling_policy=args.scheduling_policy,
    )
    return EngineCore(Scheduler(config), runner)
