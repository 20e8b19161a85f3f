"""LLM: whole answers for whole lists of prompts, synchronous, no event loop. For scripts and batch jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from triolet.args import EngineArgs
from triolet.core.control import PauseMode, SleepPart
from triolet.errors import InvalidRequestError
from triolet.frontend.input_processor import Prompt
from triolet.llm_engine import LLMEngine
from triolet.request import RequestOutput
from triolet.sampling_params import RequestOutputKind, SamplingParams

__all__ = ["LLM"]

SECONDS_BETWEEN_DRAWINGS = 0.1

Conversation = Sequence[Mapping[str, Any]]
Params = SamplingParams | Sequence[SamplingParams] | None


class LLM:
    """A model to call::

        with LLM(model="smollm2-135m-instruct") as llm:
            for output in llm.generate(["One", "Two"], SamplingParams(max_tokens=8)):
                print(output.outputs[0].text)

    Raises ModelLoadError or UsageError when the model cannot be loaded. Results come in the order of the
    prompts. A call that fails or is interrupted leaves no request behind.
    """

    def __init__(self, model: str | None = None, *, args: EngineArgs | None = None, **options: Any) -> None:
        if model is not None:
            options["model"] = model
        self._engine = LLMEngine(args, **options)
        self._ids = count()

    def generate(
        self, prompts: Prompt | Sequence[Prompt], sampling_params: Params = None, *, use_tqdm: bool = True
    ) -> list[RequestOutput]:
        """Continue each prompt: text, or token ids. ``use_tqdm`` shows a progress bar.

        Raises InvalidRequestError when a prompt, a parameter or the number of parameters is wrong; then
        nothing has been run.
        """
        many = [prompts] if _is_one(prompts, int) else prompts
        return self._run(many, sampling_params, self._engine.add_request, use_tqdm)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, through the model's chat template."""
        many = [messages] if _is_one(messages, Mapping) else messages
        return self._run(many, sampling_params, self._engine.add_chat_request, use_tqdm)

    @property
    def is_paused(self) -> bool:
        """Whether requests wait for :meth:`resume` or :meth:`wake_up`."""
        return self._engine.is_paused

    @property
    def is_sleeping(self) -> bool:
        """Whether anything is still to be woken."""
        return self._engine.is_sleeping

    def pause(self, mode: PauseMode = "abort", *, clear_cache: bool = True) -> list[RequestOutput]:
        """See :meth:`LLMEngine.pause <triolet.llm_engine.LLMEngine.pause>`."""
        return self._engine.pause(mode, clear_cache=clear_cache)

    def resume(self) -> None:
        """Go on after :meth:`pause`. Raises RuntimeError while asleep."""
        self._engine.resume()

    def sleep(self, level: int = 1, mode: PauseMode = "abort") -> list[RequestOutput]:
        """See :meth:`LLMEngine.sleep <triolet.llm_engine.LLMEngine.sleep>`."""
        return self._engine.sleep(level, mode)

    def wake_up(self, tags: Iterable[SleepPart] | None = None) -> None:
        """See :meth:`LLMEngine.wake_up <triolet.llm_engine.LLMEngine.wake_up>`."""
        self._engine.wake_up(tags)

    def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        """Forget the prefixes computed so far; False, and nothing done, while requests use them."""
        return self._engine.reset_prefix_cache(reset_running_requests=reset_running_requests)

    def close(self) -> None:
        """Give model and KV cache back; idempotent."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(
        self,
        prompts: Sequence[Any],
        params: Params,
        add: Callable[[str, Any, SamplingParams], None],
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        if self._engine.is_paused:
            raise RuntimeError("the engine is paused; call resume() or wake_up() first")
        each = _params_for(params, len(prompts))
        try:
            ids = []
            for prompt, one in zip(prompts, each, strict=True):
                ids.append(str(next(self._ids)))
                add(ids[-1], prompt, one.replace(output_kind=RequestOutputKind.FINAL_ONLY))
            finished = self._run_to_end(len(ids), use_tqdm)
        except BaseException:
            self._engine.abort_all()
            raise
        return [finished[request_id] for request_id in ids]

    def _run_to_end(self, num_requests: int, use_tqdm: bool) -> dict[str, RequestOutput]:
        finished: dict[str, RequestOutput] = {}
        with _ProgressBar(num_requests, is_shown=use_tqdm) as bar:
            while self._engine.has_unfinished_requests():
                outputs = self._engine.step()
                finished.update((output.request_id, output) for output in outputs)
                bar.advance(outputs)
        return finished


class _ProgressBar:
    """Requests done and tokens per second, on the standard error if that is a terminal. Has no thread."""

    def __init__(self, num_requests: int, *, is_shown: bool) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[speed]}"),
        )
        console = Console(stderr=True)  # the standard output is the caller's
        is_disabled = not (is_shown and console.is_terminal)
        self._progress = Progress(
            *columns, console=console, transient=True, auto_refresh=False, disable=is_disabled
        )
        self._task = self._progress.add_task("Processed prompts", total=num_requests, speed="")
        self._num_tokens = 0
        self._began = self._drawn = time.monotonic()

    def advance(self, outputs: Sequence[RequestOutput]) -> None:
        """Count finished requests; draw anew ten times a second at most."""
        now = time.monotonic()
        self._num_tokens += sum(output.num_output_tokens for output in outputs)
        speed = f"{self._num_tokens / max(now - self._began, 1e-9):.0f} tok/s"
        self._progress.update(self._task, advance=len(outputs), speed=speed)
        if now - self._drawn >= SECONDS_BETWEEN_DRAWINGS:
            self._progress.refresh()
            self._drawn = now

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()


def _is_one(values: Any, part: type) -> bool:
    """Whether these are not several but one: text, a list of parts, or something of no use at all."""
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        return True
    return len(values) > 0 and isinstance(values[0], part)


def _params_for(params: Params, num_prompts: int) -> Sequence[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * num_prompts
    if not isinstance(params, Sequence) or not all(isinstance(one, SamplingParams) for one in params):
        raise InvalidRequestError(
            "sampling_params: must be SamplingParams or a list of them", param="sampling_params"
        )
    if len(params) != num_prompts:
        raise InvalidRequestError(
            f"The lengths of prompts ({num_prompts}) and sampling_params ({len(params)}) must be the same.",
            param="sampling_params",
        )
    return params
