"""A model loaded into this process, behind the same two calls as a remote one.

The engine, and with it torch, is imported only when one is opened.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from triolet.errors import EngineGenerateError
from triolet.request import FinishReason, RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from triolet.args import EngineArgs

__all__ = ["LocalModel"]

_REQUEST_ID = "cli"


class LocalModel:
    """The model that ``args`` name. A context manager: leaving it gives the memory back."""

    def __init__(self, args: EngineArgs) -> None:
        from triolet.llm_engine import LLMEngine

        self._engine = LLMEngine(args)

    def complete(self, prompt: str, options: Mapping[str, Any]) -> Generator[str, None, None]:
        """The continuation of ``prompt``, piece by piece. Raises :class:`~triolet.errors.RequestError`."""
        self._engine.add_request(_REQUEST_ID, prompt, _sampling_params(options))
        yield from self._pieces()

    def chat(
        self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]
    ) -> Generator[str, None, None]:
        """The answer to a conversation, piece by piece. Raises :class:`~triolet.errors.RequestError`."""
        self._engine.add_chat_request(_REQUEST_ID, messages, _sampling_params(options))
        yield from self._pieces()

    def _pieces(self) -> Generator[str, None, None]:
        try:
            while self._engine.has_unfinished_requests():
                for output in self._engine.step():
                    if output.outputs[0].finish_reason is FinishReason.ERROR:
                        raise EngineGenerateError(output.error or "the request failed")
                    yield output.outputs[0].text
        finally:
            self._engine.abort_request(_REQUEST_ID)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._engine.close()


def _sampling_params(options: Mapping[str, Any]) -> SamplingParams:
    """The API's field names are those of :class:`SamplingParams`; without max_tokens all that fits."""
    return SamplingParams(**{"max_tokens": None, **options, "output_kind": RequestOutputKind.DELTA})
