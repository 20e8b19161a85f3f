"""LLM: whole answers for whole lists of prompts, synchronous, no event loop. For scripts and batch jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from triolet.args import EngineArgs
from triolet.errors import InvalidRequestError
from triolet.frontend.input_processor import Prompt
from triolet.llm_engine import LLMEngine
from triolet.request import RequestOutput, RequestOutputKind, SamplingParams

__all__ = ["LLM"]

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
        many = [prompts] if _is_prompt(prompts) else list(prompts)
        return self._run(many, sampling_params, self._engine.add_request, use_tqdm)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, through the model's chat template."""
        is_one = bool(messages) and isinstance(messages[0], Mapping)
        many = [messages] if is_one else list(messages)
        return self._run(many, sampling_params, self._engine.add_chat_request, use_tqdm)

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
        num_tokens = 0
        with _progress(use_tqdm) as progress:
            task = progress.add_task("Processed prompts", total=num_requests, speed="") if progress else None
            while self._engine.has_unfinished_requests():
                for output in self._engine.step():
                    finished[output.request_id] = output
                    num_tokens += output.num_output_tokens
                if progress is not None and task is not None:
                    elapsed = progress.tasks[task].elapsed or 1e-9
                    progress.update(task, completed=len(finished), speed=f"{num_tokens / elapsed:.0f} tok/s")
        return finished


def _progress(is_shown: bool) -> AbstractContextManager[Progress | None]:
    if not is_shown:
        return nullcontext()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[speed]}"),
    )
    # The standard output is the caller's.
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _is_prompt(prompts: Prompt | Sequence[Prompt]) -> bool:
    return isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))


def _params_for(params: Params, num_prompts: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * num_prompts
    if len(params) != num_prompts:
        raise InvalidRequestError(
            f"The lengths of prompts ({num_prompts}) and sampling_params ({len(params)}) must be the same.",
            param="sampling_params",
        )
    return list(params)
