"""A model loaded into this process, behind the same two calls as a remote one.

Knows neither the command line nor torch.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from triolet.errors import EngineGenerateError
from triolet.request import FinishReason
from triolet.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from triolet.llm_engine import LLMEngine

__all__ = ["LocalModel"]

_REQUEST_ID = "cli"


class LocalModel:
    """Text from an engine that somebody else opens and closes."""

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine

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


def _sampling_params(options: Mapping[str, Any]) -> SamplingParams:
    """The API's field names are those of :class:`SamplingParams`; without max_tokens all that fits."""
    return SamplingParams(**{"max_tokens": None, **options, "output_kind": RequestOutputKind.DELTA})
