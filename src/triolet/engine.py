"""Engine: the asynchronous front end, on asyncio and on Trio.

Text goes in, text comes out; between them are a tokeniser, the engine client and one output-handler task.
It installs no signal handlers, sets no event-loop policy, starts no process of its own and keeps no global
state: any number of engines can live in one process, each inside its own scope.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio
from anyio.abc import TaskGroup, TaskStatus

from triolet.args import EngineArgs, engine_args
from triolet.cluster.client import ClientFactory, EngineClient, open_client
from triolet.core.errors import single_error
from triolet.core.loop import Wakeup, loop_poster
from triolet.errors import (
    EngineDeadError,
    InvalidRequestError,
    JoinError,
    ModelLoadError,
    OverloadedError,
    RequestError,
    TrioletError,
    UsageError,
)
from triolet.frontend.background import run_in_background
from triolet.frontend.control import EngineControl
from triolet.frontend.fetching import fetch_model
from triolet.frontend.input_processor import GenerationParams, InputProcessor, Prompt, prompt_length
from triolet.frontend.loading import find_draft_model, find_model, load_text, served_names
from triolet.frontend.preparation import Preparation, written_length
from triolet.frontend.request_builder import num_items
from triolet.frontend.request_state import RequestState
from triolet.frontend.request_table import RequestTable
from triolet.frontend.snapshot import engine_health, engine_statistics, state_with_ranks
from triolet.frontend.stream import LazyRequestStream, RequestStream
from triolet.request import RequestOptions, RequestOutput
from triolet.sampling_params import BeamSearchParams, SamplingParams
from triolet.statistics import EngineHealth, EngineState, EngineStatistics, FrontendStatistics

if TYPE_CHECKING:
    from triolet.models.source import ModelFiles
    from triolet.text.chat_template import ChatTemplate
    from triolet.text.tokenizer import Tokenizer

__all__ = ["Engine"]

logger = logging.getLogger("triolet.engine")


class Engine(EngineControl):
    """An LLM engine that lives as long as its scope::

        async with Engine(model="smollm2-135m-instruct") as engine:
            async for output in engine.generate("Once upon a time", SamplingParams(max_tokens=32)):
                print(output.outputs[0].text)

    Resource handling: leaving the scope ends all requests, finishes the step under way and gives model and
    KV cache back. Errors: a failure of the engine cancels the body and is raised as EngineDeadError where
    the scope ends. An exception or cancellation inside the body passes through unchanged.
    """

    def __init__(
        self,
        args: EngineArgs | None = None,
        *,
        client_factory: ClientFactory = open_client,
        **options: Any,
    ) -> None:
        self.args = engine_args(args, options)
        self.model_names = served_names(self.args)
        self._client_factory = client_factory
        self._state = EngineState.STARTING
        self._phase, self._phase_began = "starting", time.monotonic()
        self._cause: BaseException | None = None
        self._is_used = False
        self._is_draining = False
        self._thread_id: int | None = None
        self._scope: anyio.CancelScope | None = None  # made by run(): there may be no loop yet
        self._stop_requested = Wakeup()
        self._statistics = FrontendStatistics()
        self._client: EngineClient | None = None
        self._inputs: InputProcessor | None = None
        self._preparation = Preparation()
        self._requests: RequestTable | None = None
        self._task_group: TaskGroup | None = None

    # ------------------------------------------------------------------ life

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Load, report started, serve until :meth:`stop` or cancelled.

        Raises ModelLoadError or UsageError when the model cannot be loaded, JoinError when no machine with an
        engine comes, EngineDeadError when the engine fails later.
        """
        if self._is_used:
            raise RuntimeError("an Engine runs once; make a new one")
        self._is_used, self._thread_id = True, threading.get_ident()
        try:
            with anyio.CancelScope() as self._scope:
                await self._serve(task_status)
        except (ModelLoadError, UsageError, JoinError, EngineDeadError) as exc:
            self._die(exc)
            raise
        except Exception as exc:
            self._die(exc)
            raise EngineDeadError(f"the engine failed: {exc!r}") from exc
        finally:
            if self._requests is not None:
                self._requests.abort_all()
            if self._state is not EngineState.DEAD:
                self._state = EngineState.STOPPED

    async def _serve(self, task_status: TaskStatus[None]) -> None:
        """The supervisor nursery; its nesting is the order of shutdown."""
        files = await fetch_model(partial(find_model, self.args), self._set_phase)
        engine_args = await fetch_model(partial(find_draft_model, self.args), self._set_phase)
        client = self._client_factory(engine_args, files, self._set_phase)
        try:
            async with anyio.create_task_group() as serving:
                self._inputs = await self._load(serving, client, files)
                self._client = client
                limit = self.args.max_unread_bytes
                self._requests = RequestTable(client, loop_poster(), self._statistics, max_unread_bytes=limit)
                async with anyio.create_task_group() as handling:
                    handling.start_soon(self._requests.handle_outputs)
                    self._state = EngineState.DRAINING if self._is_draining else EngineState.READY
                    task_status.started()
                    serving.start_soon(run_in_background, self._inputs.grammars.warm_up)
                    await self._stop_requested.wait()
                    await client.stop()  # then the output handler ends, having handed on the last outputs
                serving.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            error = single_error(group)
            raise error from error.__cause__

    async def _load(self, serving: TaskGroup, client: EngineClient, files: ModelFiles) -> InputProcessor:
        """Start the core and read the tokeniser side by side."""
        text: list[tuple[Tokenizer, ChatTemplate | None]] = []

        async def read_text() -> None:
            text.append(await run_in_background(partial(load_text, files, self.args)))

        async with anyio.create_task_group() as reading:
            reading.start_soon(read_text)
            await serving.start(client.run)
        tokenizer, chat_template = text.pop()
        return InputProcessor.create(
            self.args,
            tokenizer=tokenizer,
            chat_template=chat_template,
            max_model_len=client.max_model_len,
            vocab_size=client.vocab_size,
        )

    def stop(self) -> None:
        """Make :meth:`run` return: finish the step under way, abort the requests, give all back."""
        if self._state is EngineState.STARTING and self._scope is not None:
            self._scope.cancel()
        self._stop_requested.set()

    async def __aenter__(self) -> Self:
        self._task_group = anyio.create_task_group()
        await self._task_group.__aenter__()
        try:
            await self._task_group.start(self.run)
        except BaseException as exc:
            await self._leave(exc)
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        await self._leave(exc)

    async def _leave(self, exc: BaseException | None) -> None:
        """Close the scope's task group without wrapping the caller's exception in a group."""
        group, self._task_group = self._task_group, None
        assert group is not None, "left once, after it was entered"
        try:
            if isinstance(exc, anyio.get_cancelled_exc_class()):
                await group.__aexit__(type(exc), exc, exc.__traceback__)
                return
            if exc is not None:
                group.cancel_scope.cancel()
            await group.__aexit__(None, None, None)
        except BaseExceptionGroup as errors:
            error = single_error(errors)
            raise error from error.__cause__

    def _set_phase(self, phase: str) -> None:
        # Called from the loading threads; plain assignments of immutable values.
        if phase != self._phase:
            self._phase, self._phase_began = phase, time.monotonic()
            logger.info("%s", phase)

    def _die(self, exc: BaseException) -> None:
        self._state, self._cause = EngineState.DEAD, exc
        if self._requests is not None:
            self._requests.fail_all(exc)

    # ------------------------------------------------------------------ what it is

    @property
    def tokenizer(self) -> Tokenizer:
        return self._loaded_inputs().tokenizer

    @property
    def chat_template(self) -> ChatTemplate | None:
        return self._loaded_inputs().chat_template

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus output, in tokens."""
        return self._loaded_inputs().max_model_len

    @property
    def state(self) -> EngineState:
        return state_with_ranks(self._state, self._client)

    def health(self) -> EngineHealth:
        """State, progress and age of what is waiting, as of now."""
        is_starting = self._state is EngineState.STARTING
        return engine_health(
            self.state, self._client, phase=self._phase if is_starting else None,
            phase_seconds=time.monotonic() - self._phase_began if is_starting else None,
            cause=None if self._cause is None else str(self._cause),
        )  # fmt: skip

    def statistics(self) -> EngineStatistics:
        """An immutable snapshot, computed from live state; see :meth:`refresh_statistics`."""
        return engine_statistics(self.state, self._statistics, self._client)

    @property
    def front_end_statistics(self) -> FrontendStatistics:
        """What this front end alone has counted."""
        return self._statistics

    async def refresh_statistics(self) -> None:
        """Have :meth:`statistics` exact where engine cores run elsewhere, as far as they answer in time."""
        if self._client is not None:
            await self._client.refresh_statistics()

    async def submit(
        self,
        prompt: Prompt,
        params: GenerationParams | None = None,
        *,
        request_id: str | None = None,
        options: RequestOptions | None = None,
    ) -> RequestStream:
        """Start a request; text or token ids in. Its stream yields the outputs.

        Raises InvalidRequestError or PromptTooLongError for what the caller can mend, OverloadedError when
        the queue is full or the engine is not serving, before anything is computed.
        """
        chosen = params or SamplingParams()

        def prepare(inputs: InputProcessor) -> RequestState:
            return inputs.prepare(prompt, chosen, request_id=request_id, options=options)

        return await self._start(prepare, chosen, prompt_length(prompt) + num_items(chosen))

    async def submit_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: GenerationParams | None = None,
        *,
        request_id: str | None = None,
        options: RequestOptions | None = None,
        **rendering: Any,
    ) -> RequestStream:
        """As :meth:`submit`, for a conversation put into the model's chat template.

        ``rendering``: the options of ``ChatTemplate.render``: ``tools``, ``chat_template_kwargs`` and others.
        """
        chosen = params or SamplingParams()

        def prepare(inputs: InputProcessor) -> RequestState:
            return inputs.prepare_chat(messages, chosen, request_id=request_id, options=options, **rendering)

        return await self._start(prepare, chosen, written_length(messages, rendering) + num_items(chosen))

    def generate(
        self,
        prompt: Prompt,
        params: GenerationParams | None = None,
        *,
        request_id: str | None = None,
        options: RequestOptions | None = None,
    ) -> LazyRequestStream:
        """Submit when first asked, and yield; leaving the loop ends the request."""
        return LazyRequestStream(partial(self.submit, prompt, params, request_id=request_id, options=options))

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: GenerationParams | None = None,
        *,
        request_id: str | None = None,
        options: RequestOptions | None = None,
        **rendering: Any,
    ) -> LazyRequestStream:
        """As :meth:`generate`, for a conversation."""
        submit = partial(self.submit_chat, messages, params, request_id=request_id, options=options)
        return LazyRequestStream(partial(submit, **rendering))

    async def beam_search(
        self,
        prompt: Prompt,
        params: BeamSearchParams,
        *,
        request_id: str | None = None,
        options: RequestOptions | None = None,
    ) -> RequestOutput:
        """The likeliest continuations that a search finds, best first, with their cumulative logprobs.

        Cancellation: ends the search and everything that runs for it.
        """
        stream = await self.submit(prompt, params, request_id=request_id, options=options)
        return await anext(stream)

    def begin_drain(self) -> None:
        """Refuse new requests from here on; those under way go on. While loading, never take any."""
        self._is_draining = True
        if self._state is EngineState.READY:
            self._state = EngineState.DRAINING

    async def drain(self) -> None:
        """Refuse new requests and return once those under way have ended; a pause holds them, and so this."""
        self.begin_drain()
        await self.wait_idle()

    async def wait_idle(self) -> None:
        """Return once no request is under way."""
        if self._requests is not None:
            await self._requests.wait_idle()

    def abort_all(self, reason: str) -> None:
        """End every request; each stream gets what there is as a last output, reason ``abort``."""
        if self._requests is not None and self._requests.num_requests:
            logger.info("aborting %d requests: %s", self._requests.num_requests, reason)
            self._requests.abort_all()

    async def _start(
        self, prepare: Callable[[InputProcessor], RequestState], params: GenerationParams, length: int
    ) -> RequestStream:
        try:
            inputs, requests = self._accepting()
            state = await self._preparation.run(prepare, inputs, params, length)
            self._accepting()  # it may have been told to stop meanwhile
            return requests.add(state)
        except RequestError as exc:
            self.count_refusal(exc)
            # Without the frames in which it arose: they hold the prompt, and a thread's hold the error too.
            raise exc.with_traceback(None) from exc.__cause__

    def check_room(self) -> None:
        """Raises OverloadedError while any request would be refused, because too many wait."""
        if self._state is EngineState.READY and self._client is not None:
            self._client.check_room()

    def count_refusal(self, error: TrioletError) -> None:
        """Count a request that was refused, also by a front end before it came here."""
        self._statistics.count("invalid" if isinstance(error, InvalidRequestError) else "refused")

    def _accepting(self) -> tuple[InputProcessor, RequestTable]:
        _, requests = self._serving()
        if self._state is not EngineState.READY or self._inputs is None:
            raise OverloadedError(f"the engine is {self._state}, try again later", is_serving=False)
        return self._inputs, requests

    def _serving(self) -> tuple[EngineClient, RequestTable]:
        if self._state is EngineState.DEAD:
            raise EngineDeadError(f"the engine is dead: {self._cause}") from self._cause
        if not self._is_used:
            raise RuntimeError("the engine runs inside its scope: async with Engine(...) as engine")
        if self._state is EngineState.STOPPED or self._client is None or self._requests is None:
            remedy = "make a new one" if self._state is EngineState.STOPPED else "try again later"
            raise OverloadedError(f"the engine is {self._state}, {remedy}", is_serving=False)
        if threading.get_ident() != self._thread_id:
            raise RuntimeError("an Engine is used on the event loop that runs it; this is another thread")
        return self._client, self._requests

    def _loaded_inputs(self) -> InputProcessor:
        if self._inputs is None:
            raise RuntimeError("the model is not loaded; the engine's scope has not been entered")
        return self._inputs
