"""EngineCore: scheduler and model runner joined, token ids only, synchronous.

One step is three calls: ``schedule`` decides, ``execute`` computes, ``commit`` records. Where the device
computes beside the host, ``launch`` in the place of ``execute`` leaves it computing, and returns what waits
for the result. :meth:`EngineCore.step` makes all of them; the asynchronous service makes them apart.

This module knows no event loop, no text and no torch.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from triolet.args import EngineArgs
from triolet.core.accounts import Accounts
from triolet.core.containment import describe_failure, does_work, execute_contained
from triolet.core.control import PauseMode, SleepPart, check_level, check_mode, check_parts
from triolet.core.runner import OverlappedRunner, Runner
from triolet.core.scheduler_config import scheduler_config
from triolet.errors import ConflictError, EngineDeadError, OverloadedError
from triolet.models.source import ModelFiles
from triolet.plan import StepPlan, StepResult
from triolet.request import FinishReason, Request, TokenOutput
from triolet.runtime.constraints import Constraints
from triolet.runtime.shard_place import ShardPlace
from triolet.scheduling.scheduler import Pause, Scheduler
from triolet.statistics import CoreStatistics, SchedulerStatistics

__all__ = ["CoreFactory", "EngineCore", "build_core", "load_core"]

logger = logging.getLogger("triolet.core")

MAX_FAILED_STEPS = 3


class EngineCore:
    """Runs requests to their end, one step at a time; pauses and sleeps between steps.

    ``clock`` gives seconds; ``log_interval`` is that between two lines of statistics while there is work.
    ``constraints`` are those that the runner follows grammars with; the core has them get ready early.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        *,
        clock: Callable[[], float] = time.monotonic,
        log_interval: float = 0.0,
        constraints: Constraints | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._overlapped = runner if isinstance(runner, OverlappedRunner) else None
        self._under_way: deque[tuple[StepPlan, Callable[[], StepResult]]] = deque()
        self._last_ended = 0.0
        self._constraints = constraints
        self._grammars: dict[int, str] = {}
        self._clock = clock
        self._accounts = Accounts(clock, log_interval)
        self._num_failed_steps = 0
        self._is_paused = False
        self._asleep: frozenset[SleepPart] = frozenset()
        self.max_model_len = runner.max_model_len
        self.vocab_size = runner.vocab_size

    @property
    def has_unfinished(self) -> bool:
        return self._scheduler.has_unfinished

    # ------------------------------------------------------------------ requests

    def add(self, *requests: Request) -> None:
        """Queue requests that belong together, all of them or none.

        Raises OverloadedError (queue full) or PromptTooLongError (never fits).
        """
        with self._telling_when():
            self._scheduler.add(*requests)
        for request in requests:
            self._accounts.added(request)
            self._prepare(request)

    def check_room(self) -> None:
        """Raises OverloadedError while any request would be refused, because too many wait."""
        with self._telling_when():
            self._scheduler.check_room()

    @contextmanager
    def _telling_when(self) -> Iterator[None]:
        """Adds to a refusal how long it takes until there is room."""
        try:
            yield
        except OverloadedError as exc:
            exc.retry_after = self._accounts.retry_after(self._scheduler.num_waiting)
            raise

    def _prepare(self, request: Request) -> None:
        adjustments = request.adjustments
        if self._constraints is not None and adjustments is not None and adjustments.grammar is not None:
            self._grammars[request.request_id] = adjustments.grammar
            self._constraints.prepare(adjustments.grammar)

    def _release_grammars(self) -> None:
        """Let go of what was prepared for requests that have ended since."""
        if self._constraints is not None and self._grammars:
            for request_id in self._grammars.keys() - set(self._accounts.request_ids):
                self._constraints.release(self._grammars.pop(request_id))

    def abort(self, request_id: int, *, is_moved: bool = False) -> bool:
        """Take a request out, wherever it is; False if it has ended already.

        ``is_moved``: another engine has it from here on, so that only that one counts it.
        """
        if is_moved:
            self._accounts.moved(request_id)
        else:
            self._accounts.ended(request_id)
        return self._scheduler.abort(request_id)

    def expire(self) -> list[TokenOutput]:
        """End the requests that are past a deadline, with what they have."""
        late = list(self._accounts.deadlines.take_late(self._clock()))
        outputs = [output for request_id in late if (output := self._scheduler.expire(request_id))]
        for request_id in late:
            self._accounts.ended(request_id)
        return outputs

    def seconds_to_deadline(self) -> float | None:
        """Until :meth:`expire` will next have something to do; None if it will not."""
        due = self._accounts.deadlines.next_due()
        return None if due is None else due - self._clock()

    # ------------------------------------------------------------------ steps

    def schedule(self) -> StepPlan | None:
        """The next step, or None if nothing can run now."""
        self._release_grammars()
        plan = self._scheduler.schedule()
        if plan is not None:
            self._accounts.planned(plan)
        return plan

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute a step. A failure is that of the requests it happens with, not of the engine.

        Raises EngineDeadError after several steps in a row of which nothing succeeded, nor anything else
        that was tried: then it is the device, not a request.
        """
        started = self._clock()
        result, failure = execute_contained(self._runner.execute, plan)
        if failure is None or does_work(self._runner.probe):
            self._num_failed_steps = 0
            return replace(result, seconds=self._clock() - started)
        self._num_failed_steps += 1
        if self._num_failed_steps >= MAX_FAILED_STEPS:
            raise EngineDeadError(
                f"{self._num_failed_steps} steps in a row failed, the last with {failure!r}"
            ) from failure
        return result

    @property
    def max_steps_under_way(self) -> int:
        """How many steps may have been launched before the result of the first is taken."""
        return 1 if self._overlapped is None else self._overlapped.max_steps_under_way

    def launch(self, plan: StepPlan) -> Callable[[], StepResult]:
        """Have the device compute a step; → what waits for its result. See :class:`OverlappedRunner`.

        A failure to launch is contained as by :meth:`execute`. One that comes to light only with the result
        is the device's, which then is of no use any more: EngineDeadError.
        """
        if self._overlapped is not None:
            started = self._clock()
            try:
                return partial(self._wait, plan, started, self._overlapped.launch(plan))
            except Exception as exc:
                logger.warning(
                    "step %d could not be launched and is run again: %s", plan.step_id, describe_failure(exc)
                )
        result = self.execute(plan)
        return lambda: result

    def _wait(self, plan: StepPlan, started: float, take_result: Callable[[], StepResult]) -> StepResult:
        try:
            result = take_result()
        except Exception as exc:
            cause = describe_failure(exc)
            raise EngineDeadError(f"step {plan.step_id} was lost by the device: {cause}") from exc
        self._num_failed_steps = 0
        # The device began with it when it was done with the one before.
        started, self._last_ended = max(started, self._last_ended), self._clock()
        return replace(result, seconds=self._last_ended - started)

    def commit(self, plan: StepPlan, result: StepResult) -> list[TokenOutput]:
        """Record what a step computed and return what it produced; plans are committed in order."""
        outputs = self._accounts.committed(plan, self._scheduler.commit(plan, result))
        self._accounts.log(self._scheduler.statistics)
        return outputs

    def step(self) -> list[TokenOutput]:
        """One whole step; empty when there was nothing to do. Requests that are late end before it.

        Where steps overlap, the next ones are launched before the result of this one is waited for.
        """
        outputs = self.expire()
        while len(self._under_way) < self.max_steps_under_way and (plan := self.schedule()) is not None:
            self._under_way.append((plan, self.launch(plan)))
        if not self._under_way:
            return outputs
        plan, take_result = self._under_way.popleft()
        return outputs + self.commit(plan, take_result())

    # ------------------------------------------------------------------ control

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    @property
    def is_sleeping(self) -> bool:
        return bool(self._asleep)

    @property
    def is_quiet(self) -> bool:
        """Whether a pause is complete: no step is under way, nor any request that is waited for."""
        return self.is_paused and not self._scheduler.has_work

    def pause(self, mode: PauseMode) -> list[TokenOutput]:
        """Start no request from here on; what is aborted is returned. Complete once :attr:`is_quiet`.

        Asleep there is nothing to wait for: what has begun is frozen, whatever the mode.
        Raises InvalidRequestError for an unknown mode.
        """
        check_mode(mode)
        self._is_paused = True
        is_finishing = mode == "wait" and not self._asleep
        self._scheduler.pause(Pause.NEWCOMERS if is_finishing else Pause.ALL)
        return [
            TokenOutput(request_id=request_id, finish_reason=FinishReason.ABORT)
            for request_id in (self._accounts.request_ids if mode == "abort" else ())
            if self.abort(request_id)
        ]

    def resume(self) -> None:
        """Go on after a pause. Raises ConflictError while asleep."""
        if self._asleep:
            raise ConflictError("the engine sleeps; wake it with wake_up()")
        self._is_paused = False
        self._scheduler.pause(Pause.NOTHING)

    def sleep(self, level: int) -> None:
        """Fall asleep and release what ``level`` says, where one thread does everything."""
        check_level(level)
        self.fall_asleep(level)
        if level > 0:
            self.release_memory()

    def wake(self, tags: Iterable[SleepPart] | None) -> None:
        """Restore and wake the parts meant by ``tags``, where one thread does everything."""
        parts = self.parts_to_wake(tags)
        self.restore_memory(parts)
        self.wake_up(parts)

    def fall_asleep(self, level: int) -> None:
        """Sleep from here on, a pause being complete; from level 1 on :meth:`release_memory` follows.

        Requests that have begun will be computed anew, with the same outcome.
        """
        assert self.is_quiet
        if level == 0:
            self._asleep |= {"scheduling"}
            return
        self.reset_prefix_cache(reset_running_requests=True)
        self._asleep = frozenset({"weights", "kv_cache", "scheduling"})

    def release_memory(self) -> None:
        """Give the memory of weights and KV cache back; on the thread that computes."""
        assert self._asleep
        self._runner.release()

    def parts_to_wake(self, tags: Iterable[SleepPart] | None) -> frozenset[SleepPart]:
        """What of it is asleep, all of it by None. Raises InvalidRequestError for an unknown part."""
        return check_parts(tags, self._asleep)

    def restore_memory(self, parts: Collection[SleepPart]) -> None:
        """Have weights or KV cache again; on the thread that computes. Raises ModelLoadError."""
        for part in sorted(set(parts) - {"scheduling"}):
            self._runner.restore(part)

    def wake_up(self, parts: Collection[SleepPart]) -> None:
        """These have been restored. When nothing is missing any more, requests go on."""
        self._asleep -= set(parts)
        if parts and self._asleep <= {"scheduling"}:
            self._asleep = frozenset()
            self.resume()

    def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        """Forget all computed prefixes; False, and nothing done, while requests use them.

        ``reset_running_requests``: have those compute everything anew instead, with the same outcome.
        """
        return self._scheduler.reset_prefix_cache(preempt_running=reset_running_requests)

    # ------------------------------------------------------------------ books

    def statistics(self) -> SchedulerStatistics:
        return self._scheduler.statistics()

    def core_statistics(self) -> CoreStatistics:
        return self._accounts.statistics()

    def check_integrity(self) -> None:
        """Assert every invariant of the scheduler and its blocks."""
        self._scheduler.check_integrity()
        assert self._scheduler.has_unfinished or not self._accounts.request_ids
        assert len(self._accounts.deadlines) <= len(self._accounts.request_ids)

    def reset(self) -> None:
        """Drop every request and all books about them, in whatever state an interrupted step left them.

        A pause is then of all that comes, whatever its mode was.
        """
        while self._under_way:
            with suppress(Exception):  # nobody is left to hear of it
                self._under_way.popleft()[1]()
        self._scheduler = Scheduler(self._scheduler.config)
        if self._is_paused:
            self._scheduler.pause(Pause.ALL)
        for request_id in self._accounts.request_ids:
            self._accounts.ended(request_id)

    def warm_up(self) -> None:
        """Begin, beside other work, what only the first request of a kind would have to wait for."""
        if self._constraints is not None:
            self._constraints.warm_up()

    def close(self) -> None:
        """Give weights and KV cache back."""
        self._runner.close()
        if self._constraints is not None:
            self._constraints.close()


CoreFactory = Callable[[EngineArgs, ModelFiles, Callable[[str], None]], EngineCore]


def load_core(
    args: EngineArgs,
    files: ModelFiles,
    on_phase: Callable[[str], None],
    *,
    num_sharing: int = 1,
    place: ShardPlace | None = None,
) -> EngineCore:
    """Load the model and build a core around it, on the thread that will run its steps.

    ``on_phase`` is told what is being done, again and again; what it raises ends the loading. ``num_sharing``
    engines, this one among them, share the memory of the device. With ``place`` it is shard 0 of the model,
    and leads the others that come there.
    """
    on_phase("loading torch")
    from triolet.runtime.leading_runner import LeadingRunner
    from triolet.runtime.runner_choice import load_runner  # torch takes seconds: not before it is needed
    from triolet.text.constraints import GrammarConstraints
    from triolet.text.grammar_tokenizer import load_grammar_tokenizer

    constraints = GrammarConstraints(lambda: load_grammar_tokenizer(files, runner.vocab_size))
    load: Callable[..., Runner] = load_runner if place is None else partial(LeadingRunner.lead_at, place)
    runner = load(files, args, on_phase, constraints=constraints, num_sharing=num_sharing)
    return build_core(runner, args, constraints)


def build_core(runner: Runner, args: EngineArgs, constraints: Constraints | None = None) -> EngineCore:
    """A core around a model runner, with the limits that the arguments set and those that the runner has."""
    return EngineCore(
        Scheduler(scheduler_config(args, runner)),
        runner,
        log_interval=args.log_stats_interval,
        constraints=constraints,
    )
