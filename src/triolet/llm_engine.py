"""LLMEngine: the engine one step at a time, synchronous.

For loops of one's own: add requests, call :meth:`LLMEngine.step` while there are unfinished ones. No event
loop, no thread, no process, unless the options ask for engines in processes of their own.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self

from triolet.args import EngineArgs, engine_args
from triolet.cluster.sync_client import open_step_core
from triolet.core.control import PauseMode, SleepPart, check_level
from triolet.core.step_core import StepCore, StepCoreFactory
from triolet.errors import InvalidRequestError, RequestError
from triolet.frontend.exclusive import Exclusive
from triolet.frontend.input_processor import GenerationParams, InputProcessor, Prompt
from triolet.frontend.loading import PhaseLog, find_draft_model, find_model, load_text
from triolet.frontend.output_processor import OutputProcessor, ProcessedOutput
from triolet.frontend.request_state import RequestState
from triolet.request import RequestOptions, RequestOutput, TokenOutput
from triolet.sampling_params import SamplingParams
from triolet.statistics import FrontendStatistics

__all__ = ["LLMEngine"]

logger = logging.getLogger("triolet.engine")


class LLMEngine:
    """Loads a model and runs requests step by step; close it, or use it in a ``with``.

    Raises ModelLoadError or UsageError when the model cannot be loaded. For one thread at a time:
    RuntimeError in another that calls meanwhile.
    """

    def __init__(
        self,
        args: EngineArgs | None = None,
        *,
        core_factory: StepCoreFactory = open_step_core,
        **options: Any,
    ) -> None:
        args = engine_args(args, options)
        self.args = replace(args, max_num_queued_requests=sys.maxsize, max_num_queued_tokens=sys.maxsize)
        on_phase = PhaseLog(logger)
        files = find_model(self.args, on_phase)
        tokenizer, chat_template = load_text(files, self.args)
        self._core: StepCore | None = core_factory(find_draft_model(self.args, on_phase), files, on_phase)
        self.inputs = InputProcessor.create(
            self.args,
            tokenizer=tokenizer,
            chat_template=chat_template,
            max_model_len=self._core.max_model_len,
            vocab_size=self._core.vocab_size,
        )
        self._outputs = OutputProcessor(FrontendStatistics())
        self._states: dict[str, RequestState] = {}
        self.exclusive = Exclusive("LLM")

    @classmethod
    def from_engine_args(cls, args: EngineArgs) -> Self:
        """One with these options."""
        return cls(args)

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: GenerationParams | None = None,
        *,
        options: RequestOptions | None = None,
    ) -> None:
        """Queue a request under an id of the caller's choice.

        Raises TypeError if the id is no string, InvalidRequestError if it is in use or the request is wrong.
        There is no limit to the queue: it is the caller's own.
        """
        self._add(
            request_id, partial(self.inputs.prepare, prompt, params or SamplingParams(), options=options)
        )

    def add_chat_request(
        self,
        request_id: str,
        messages: Sequence[Mapping[str, Any]],
        params: GenerationParams | None = None,
        *,
        options: RequestOptions | None = None,
        **rendering: Any,
    ) -> None:
        """As :meth:`add_request`, for a conversation put into the model's chat template."""
        self._add(
            request_id,
            partial(
                self.inputs.prepare_chat,
                messages,
                params or SamplingParams(),
                options=options,
                **rendering,
            ),
        )

    def step(self) -> list[RequestOutput]:
        """Run one step and return what it produced.

        A request that failed ends with finish reason ``error`` and the cause in ``error``; the others go on.
        Raises EngineDeadError when the engine itself failed. Any exception, KeyboardInterrupt too, ends all
        requests, since what they had reached is not known any more; new ones may be added. RuntimeError while
        paused with requests that wait, which ends none: they would wait for ever.
        """
        core = self._open_core()
        with self.exclusive.held():
            try:
                outputs = self._process(core, core.step())
            except BaseException:
                self.abort_all()
                raise
        if not outputs and core.is_quiet and self.has_unfinished_requests():
            raise RuntimeError("the engine is paused; its requests go on after resume() or wake_up()")
        return outputs

    def has_unfinished_requests(self) -> bool:
        return self._outputs.num_requests > 0

    def abort_request(self, request_id: str) -> RequestOutput | None:
        """End a request with what it has so far; None if there is none of that id."""
        state = self._states.pop(request_id, None)
        ended = None if state is None else self._outputs.abort(state, time.monotonic())
        if ended is None:
            return None
        for core_id in ended.orders.aborts:
            self._open_core().abort(core_id)
        return ended.output

    def abort_all(self) -> None:
        """End every request, also after something was interrupted half-way."""
        self.exclusive.check()
        if self._core is not None:
            self._core.reset()
        self._outputs.abort_all(time.monotonic())
        self._states.clear()

    @property
    def is_paused(self) -> bool:
        """Whether requests wait for :meth:`resume` or :meth:`wake_up`."""
        return self._open_core().is_paused

    @property
    def is_sleeping(self) -> bool:
        """Whether anything is still to be woken."""
        return self._open_core().is_sleeping

    def pause(self, mode: PauseMode = "abort", *, clear_cache: bool = True) -> list[RequestOutput]:
        """Compute nothing more; returns what requests came to meanwhile. New ones are accepted and wait.

        ``abort`` ends all requests, ``wait`` steps until those that have begun have ended, ``keep`` freezes
        them. ``clear_cache`` forgets the prefixes computed so far; what was frozen is then computed anew,
        with the same outcome. Raises InvalidRequestError for an unknown mode.
        """
        core = self._open_core()
        outputs = self._process(core, core.pause(mode))
        while not core.is_quiet:
            outputs += self.step()
        if clear_cache:
            core.reset_prefix_cache(reset_running_requests=True)
        return outputs

    def resume(self) -> None:
        """Go on after :meth:`pause`. Raises ConflictError while asleep."""
        self._open_core().resume()

    def sleep(self, level: int = 1, mode: PauseMode = "abort") -> list[RequestOutput]:
        """Pause as ``mode`` says; from level 1 on give the memory of weights and KV cache back as well.

        Raises InvalidRequestError for an unknown level or mode.
        """
        check_level(level)
        core = self._open_core()
        outputs = [] if core.is_sleeping else self.pause(mode, clear_cache=level > 0)
        core.sleep(level)
        return outputs

    def wake_up(self, tags: Iterable[SleepPart] | None = None) -> None:
        """Have everything again, or the parts in ``tags``: ``weights``, ``kv_cache``, ``scheduling``.

        Requests go on once nothing is missing. Raises InvalidRequestError for an unknown part, ModelLoadError
        if the weights cannot be read: then the engine sleeps on.
        """
        core = self._open_core()
        core.wake(tags)

    def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        """Forget the prefixes computed so far; False, and nothing done, while requests use them.

        ``reset_running_requests``: have those compute everything anew instead, with the same outcome.
        """
        return self._open_core().reset_prefix_cache(reset_running_requests=reset_running_requests)

    def close(self) -> None:
        """End every request, give model and KV cache back; idempotent."""
        self.abort_all()
        core, self._core = self._core, None
        if core is not None:
            core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _open_core(self) -> StepCore:
        self.exclusive.check()
        if self._core is None:
            raise RuntimeError("the engine is closed")
        return self._core

    def _add(self, request_id: str, prepare: Callable[..., RequestState]) -> None:
        if not isinstance(request_id, str):
            raise TypeError(f"request_id must be a str, got {type(request_id).__name__}")
        if request_id in self._states:
            raise InvalidRequestError(f"request_id: {request_id!r} is in use", param="request_id")
        core = self._open_core()
        with self.exclusive.held():
            state = prepare(request_id=request_id)
            core.add(*state.requests)
            self._outputs.add(state)
            self._states[request_id] = state

    def _process(self, core: StepCore, outputs: Sequence[TokenOutput]) -> list[RequestOutput]:
        processed = self._outputs.process(outputs, time.monotonic())
        return [output for item in processed for output in self._settle(core, item)]

    def _settle(self, core: StepCore, item: ProcessedOutput) -> list[RequestOutput]:
        """Tell the core what it has to be told; → the outputs for the caller."""
        for core_id in item.orders.aborts:
            core.abort(core_id)
        try:
            if item.orders.additions:
                core.add(*item.orders.additions)
        except RequestError as exc:
            return self._settle(core, self._outputs.fail(item.state, exc, time.monotonic()))
        if item.output is None:
            return []
        if item.output.is_finished:
            del self._states[item.state.head.request_id]
        return [item.output]
