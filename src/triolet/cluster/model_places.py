"""Where the models of a launch are: found once, by the process that starts the others.

So nothing is fetched by several at a time, a name that names nothing is told before anything starts, and an
engine that is started again does not look anything up. This module starts no process.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

import anyio

from triolet.args import EngineArgs
from triolet.models.fetch_progress import FetchProgress, ProgressCallback
from triolet.models.source import ModelFiles, resolve_model

__all__ = ["find_models", "with_model_at"]

logger = logging.getLogger("triolet.cluster")


async def find_models(args: EngineArgs) -> EngineArgs:
    """The options for engines: with the places of the model and the draft model, fetched where need be.

    Raises what :func:`~triolet.models.source.resolve_model` does.

    Cancellation: a fetch is left to end by itself.
    """
    logger.info("finding the model")
    files = await _find(args, args.model, args.revision)
    if args.draft_model is None:
        return with_model_at(args, files)
    draft = await _find(args, args.draft_model, None)
    return replace(with_model_at(args, files), draft_model=str(draft.path))


def with_model_at(args: EngineArgs, files: ModelFiles) -> EngineArgs:
    """The options for engines, which find the model at once."""
    return replace(args, model=str(files.path), revision=None)


async def _find(args: EngineArgs, name: str, revision: str | None) -> ModelFiles:
    find = partial(resolve_model, name, cache_dir=args.cache_dir, revision=revision, progress=_log_phases())
    return await anyio.to_thread.run_sync(find, abandon_on_cancel=True)


def _log_phases() -> ProgressCallback:
    """Says what a fetch does whenever that is something else."""
    told = ""

    def tell(progress: FetchProgress) -> None:
        nonlocal told
        if progress.phase != told:
            told = progress.phase
            logger.info("%s", progress)

    return tell
