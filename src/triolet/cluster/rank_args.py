"""The options of an engine among several, or of a server, as they are sent to its process.

This module knows no message.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from triolet.args import EngineArgs
from triolet.parallel_args import ParallelArgs

__all__ = ["plain_args", "plain_rank_args", "rank_args"]

UNLIMITED = 2**31 - 1
"""For the queue of an engine process: the front ends limit what waits, over all engines."""


def plain_rank_args(args: EngineArgs, *, num_threads: int) -> dict[str, Any]:
    """What one engine is told of ``args``: nothing of other processes, nor of the HTTP server."""
    shared = {option.name for option in fields(ParallelArgs)}
    values = {
        option.name: _plain(getattr(args, option.name))
        for option in fields(EngineArgs)
        if option.name not in shared
    }
    limits = {"max_num_queued_requests": UNLIMITED, "max_num_queued_tokens": UNLIMITED}
    return values | limits | {"num_threads": num_threads}


def plain_args(args: EngineArgs) -> dict[str, Any]:
    """All options as values that can be sent."""
    return {option.name: _plain(getattr(args, option.name)) for option in fields(args)}


def rank_args(values: dict[str, Any]) -> EngineArgs:
    """The options again. Raises UsageError for values that :func:`plain_rank_args` would not give."""
    return EngineArgs(**values)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
