"""LLM: whole answers for whole lists of prompts, synchronous, no event loop. For scripts and batch jobs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

from triolet.args import EngineArgs
from triolet.core.control import PauseMode, SleepPart
from triolet.errors import InvalidRequestError, UsageError
from triolet.frontend.input_processor import GenerationParams, Prompt
from triolet.frontend.offline_options import engine_options
from triolet.frontend.progress_bar import ProgressBar
from triolet.llm_engine import LLMEngine
from triolet.request import RequestOptions, RequestOutput
from triolet.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams
from triolet.text.tokenizer import Tokenizer

__all__ = ["LLM"]

logger = logging.getLogger("triolet.engine")

T = TypeVar("T")

Conversation = Sequence[Mapping[str, Any]]
Params = SamplingParams | Sequence[SamplingParams] | None
Priority = Sequence[int] | None


class LLM:
    """A model to call::

        with LLM(model="smollm2-135m-instruct") as llm:
            for output in llm.generate(["One", "Two"], SamplingParams(max_tokens=8)):
                print(output.outputs[0].text)

    Raises ModelLoadError or UsageError when the model cannot be loaded. Results come in the order of the
    prompts. A call that fails leaves no request behind; one that is interrupted ends those that were queued
    with :meth:`enqueue` as well. For one thread at a time: RuntimeError in another that calls meanwhile.
    """

    def __init__(self, model: str | None = None, *, args: EngineArgs | None = None, **options: Any) -> None:
        if model is not None:
            options["model"] = model
        self._engine = LLMEngine(args, **engine_options(options))
        self._ids = count()
        self._enqueued: list[str] = []
        self._finished: dict[str, RequestOutput] = {}

    @classmethod
    def from_engine_args(cls, args: EngineArgs) -> Self:
        """One with these options."""
        return cls(args=args)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokeniser."""
        return self._engine.inputs.tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        priority: Priority = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Continue each prompt: text, or token ids. ``use_tqdm`` shows a progress bar.

        ``sampling_params`` are for all, or as many as the prompts; so many are ``priority``. Raises
        InvalidRequestError when a prompt, a parameter or the number of them is wrong; then nothing is run.
        """
        add = self._engine.add_request
        return self._run(_many(prompts, int), sampling_params, priority, add, use_tqdm)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Params = None,
        *,
        priority: Priority = None,
        use_tqdm: bool = True,
        **rendering: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, through the model's chat template.

        ``rendering``: ``add_generation_prompt``, ``continue_final_message``, ``tools``, and variables of the
        template as ``chat_template_kwargs``.
        """
        add = partial(self._engine.add_chat_request, **rendering)
        return self._run(_many(messages, Mapping), sampling_params, priority, add, use_tqdm)

    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams, *, use_tqdm: bool = False
    ) -> list[RequestOutput]:
        """Search each prompt's likeliest continuations: the outputs come best first, with their
        ``cumulative_logprob``."""
        if not isinstance(params, BeamSearchParams):
            raise InvalidRequestError("params: must be BeamSearchParams", param="params")
        return self._run(_many(prompts, int), params, None, self._engine.add_request, use_tqdm)

    def enqueue(
        self, prompts: Prompt | Sequence[Prompt], sampling_params: Params = None, *, priority: Priority = None
    ) -> list[str]:
        """Queue prompts as :meth:`generate` takes them, compute nothing yet; returns their ids."""
        return self._enqueue(_many(prompts, int), sampling_params, priority, self._engine.add_request)

    def enqueue_chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Params = None,
        *,
        priority: Priority = None,
        **rendering: Any,
    ) -> list[str]:
        """As :meth:`enqueue`, for conversations."""
        add = partial(self._engine.add_chat_request, **rendering)
        return self._enqueue(_many(messages, Mapping), sampling_params, priority, add)

    def wait_for_completion(self, *, use_tqdm: bool = True) -> list[RequestOutput]:
        """Run all that is queued to its end; results in the order in which it was queued."""
        with self._uninterrupted():
            self._check_not_paused()
            outputs = self._run_to_end(list(self._enqueued), use_tqdm)
            self._enqueued.clear()
        return outputs

    def encode(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: UsageError."""
        raise _pooling_error("encode")

    def embed(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: UsageError."""
        raise _pooling_error("embed")

    def classify(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: UsageError."""
        raise _pooling_error("classify")

    def score(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: UsageError."""
        raise _pooling_error("score")

    def reward(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: UsageError."""
        raise _pooling_error("reward")

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
        return self._keep(self._engine.pause(mode, clear_cache=clear_cache))

    def resume(self) -> None:
        """Go on after :meth:`pause`. Raises ConflictError while asleep."""
        self._engine.resume()

    def sleep(self, level: int = 1, mode: PauseMode = "abort") -> list[RequestOutput]:
        """See :meth:`LLMEngine.sleep <triolet.llm_engine.LLMEngine.sleep>`."""
        return self._keep(self._engine.sleep(level, mode))

    def wake_up(self, tags: Iterable[SleepPart] | None = None) -> None:
        """See :meth:`LLMEngine.wake_up <triolet.llm_engine.LLMEngine.wake_up>`."""
        self._engine.wake_up(tags)

    def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        """Forget the prefixes computed so far; False, and nothing done, while requests use them."""
        return self._engine.reset_prefix_cache(reset_running_requests=reset_running_requests)

    def close(self) -> None:
        """Give model and KV cache back; idempotent."""
        self._forget_all()
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
        params: Params | BeamSearchParams,
        priority: Priority,
        add: Callable[..., None],
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        with self._uninterrupted():
            self._check_not_paused()
            return self._run_to_end(self._add_all(prompts, params, priority, add), use_tqdm)

    def _enqueue(
        self, prompts: Sequence[Any], params: Params, priority: Priority, add: Callable[..., None]
    ) -> list[str]:
        with self._uninterrupted():
            ids = self._add_all(prompts, params, priority, add)
            self._enqueued += ids
        return ids

    def _add_all(
        self,
        prompts: Sequence[Any],
        params: Params | BeamSearchParams,
        priority: Priority,
        add: Callable[..., None],
    ) -> list[str]:
        """All of them or, where one is refused, none; → their ids."""
        each_params = _params_for(params, len(prompts))
        each_priority = _priorities_for(priority, len(prompts))
        ids: list[str] = []
        try:
            for prompt, one, rank in zip(prompts, each_params, each_priority, strict=True):
                ids.append(str(next(self._ids)))
                add(ids[-1], prompt, _final_only(one), options=RequestOptions(priority=rank))
        except Exception:
            for request_id in ids:
                self._engine.abort_request(request_id)
            raise
        return ids

    def _run_to_end(self, ids: Sequence[str], use_tqdm: bool) -> list[RequestOutput]:
        waiting = set(ids) - self._finished.keys()
        try:
            with ProgressBar(len(waiting), is_shown=use_tqdm) as bar:
                while waiting:
                    outputs = self._keep(self._engine.step())
                    bar.advance([output for output in outputs if output.request_id in waiting])
                    waiting.difference_update(output.request_id for output in outputs)
        except Exception:
            self._forget_all()
            raise
        outputs = [self._finished.pop(request_id) for request_id in ids]
        _tell_failures(outputs)
        return outputs

    @contextmanager
    def _uninterrupted(self) -> Iterator[None]:
        """Hold the engine; an interrupt ends all requests, since what it left half-way is not known."""
        with self._engine.exclusive.held():
            try:
                yield
            except Exception:
                raise
            except BaseException:
                self._forget_all()
                raise

    def _keep(self, outputs: list[RequestOutput]) -> list[RequestOutput]:
        """Keep what is asked for later; all outputs are final."""
        self._finished.update((output.request_id, output) for output in outputs)
        return outputs

    def _forget_all(self) -> None:
        self._engine.abort_all()
        self._enqueued.clear()
        self._finished.clear()

    def _check_not_paused(self) -> None:
        if self._engine.is_paused:
            raise RuntimeError("the engine is paused; call resume() or wake_up() first")


def _tell_failures(outputs: Sequence[RequestOutput]) -> None:
    errors = [output.error for output in outputs if output.error is not None]
    if errors:
        logger.warning(
            "%d of %d requests failed, and have an error instead of an answer; the first: %s",
            len(errors),
            len(outputs),
            errors[0],
        )


def _many(values: Any, part: type) -> Sequence[Any]:
    """Several as they are; one, or something of no use at all, as a list: text, or a list of parts."""
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        return [values]
    return [values] if len(values) > 0 and isinstance(values[0], part) else values


def _final_only(params: GenerationParams) -> GenerationParams:
    if isinstance(params, BeamSearchParams):
        return params
    return params.replace(output_kind=RequestOutputKind.FINAL_ONLY)


def _params_for(params: Params | BeamSearchParams, num_prompts: int) -> Sequence[GenerationParams]:
    if params is None or isinstance(params, GenerationParams):
        return [params or SamplingParams()] * num_prompts
    if not isinstance(params, Sequence) or not all(isinstance(one, SamplingParams) for one in params):
        raise InvalidRequestError(
            "sampling_params: must be SamplingParams or a list of them", param="sampling_params"
        )
    return _as_many("sampling_params", params, num_prompts)


def _priorities_for(priority: Priority, num_prompts: int) -> Sequence[int]:
    if priority is None:
        return [0] * num_prompts
    if not isinstance(priority, Sequence) or isinstance(priority, str):
        raise InvalidRequestError("priority: must be a list of integers", param="priority")
    return _as_many("priority", priority, num_prompts)


def _as_many(name: str, values: Sequence[T], num_prompts: int) -> Sequence[T]:
    if len(values) != num_prompts:
        raise InvalidRequestError(
            f"The lengths of prompts ({num_prompts}) and {name} ({len(values)}) must be the same.", param=name
        )
    return values


def _pooling_error(name: str) -> UsageError:
    return UsageError(
        f"LLM.{name}() is only supported for pooling models, and this engine runs models that generate: call "
        "LLM.generate() or LLM.chat() instead, or serve a pooling model with another engine",
        param="runner",
    )
