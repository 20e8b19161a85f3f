"""triolet: an LLM inference server and library in which every request is a scope.

The public names are resolved on first use, so that ``import triolet`` loads neither torch nor the web stack.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triolet.args import EngineArgs, ServeArgs
    from triolet.engine import Engine
    from triolet.errors import TrioletError
    from triolet.llm import LLM
    from triolet.llm_engine import LLMEngine
    from triolet.request import CompletionOutput, FinishReason, RequestOptions, RequestOutput
    from triolet.sampling_params import (
        BeamSearchParams,
        RequestOutputKind,
        SamplingParams,
        StructuredOutputs,
    )

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "BeamSearchParams",
    "CompletionOutput",
    "Engine",
    "EngineArgs",
    "FinishReason",
    "LLMEngine",
    "RequestOptions",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "ServeArgs",
    "StructuredOutputs",
    "TrioletError",
    "__version__",
]

_HOMES = {
    "LLM": "triolet.llm",
    "BeamSearchParams": "triolet.sampling_params",
    "CompletionOutput": "triolet.request",
    "Engine": "triolet.engine",
    "EngineArgs": "triolet.args",
    "FinishReason": "triolet.request",
    "LLMEngine": "triolet.llm_engine",
    "RequestOptions": "triolet.request",
    "RequestOutput": "triolet.request",
    "RequestOutputKind": "triolet.sampling_params",
    "SamplingParams": "triolet.sampling_params",
    "ServeArgs": "triolet.args",
    "StructuredOutputs": "triolet.sampling_params",
    "TrioletError": "triolet.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'triolet' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
