"""What every front end loads before its first request: the model's files, its tokeniser, its chat template.

Synchronous: the asynchronous front end calls this in a worker thread. Knows no torch.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from triolet.args import EngineArgs
from triolet.errors import UsageError

if TYPE_CHECKING:
    from triolet.models.source import ModelFiles
    from triolet.text.chat_template import ChatTemplate
    from triolet.text.tokenizer import Tokenizer

__all__ = ["PhaseLog", "find_draft_model", "find_model", "load_text", "served_names"]


class PhaseLog:
    """Logs what is being done, once, however often it is told."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._phase = ""

    def __call__(self, phase: str) -> None:
        if phase != self._phase:
            self._phase = phase
            self._logger.info("%s", phase)


def find_model(args: EngineArgs, on_phase: Callable[[str], None]) -> ModelFiles:
    """The model's files, fetched first if need be. Raises ModelFetchError with the manual way out."""
    from triolet.models.source import resolve_model

    on_phase("finding the model")
    return resolve_model(
        args.model,
        cache_dir=args.cache_dir,
        revision=args.revision,
        progress=lambda progress: on_phase(str(progress)),
    )


def find_draft_model(args: EngineArgs, on_phase: Callable[[str], None]) -> EngineArgs:
    """The options for engines, with the place of the draft model, fetched first if need be.

    So it is looked for once, however many engines there are. Raises what :func:`find_model` does.
    """
    from triolet.models.source import resolve_model

    if args.draft_model is None:
        return args
    on_phase("finding the draft model")
    files = resolve_model(
        args.draft_model,
        cache_dir=args.cache_dir,
        progress=lambda progress: on_phase(str(progress)),
    )
    return replace(args, draft_model=str(files.path))


def load_text(files: ModelFiles, args: EngineArgs) -> tuple[Tokenizer, ChatTemplate | None]:
    """Tokeniser and chat template. Raises ModelFileError, or UsageError for a bad ``--chat-template``."""
    from triolet.text.chat_template import ChatTemplate
    from triolet.text.tokenizer import load_tokenizer
    from triolet.text.tool_parsers.formats import named_reasoning_format, named_tool_format

    tokenizer = load_tokenizer(files)
    source = tokenizer.chat_template if args.chat_template is None else _read_template(args.chat_template)
    if source is None:
        return tokenizer, None
    template = ChatTemplate(
        source,
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
        tool_format=None if args.tool_call_parser is None else named_tool_format(args.tool_call_parser),
        reasoning_format=None
        if args.reasoning_parser is None
        else named_reasoning_format(args.reasoning_parser),
    )
    return tokenizer, template


def served_names(args: EngineArgs) -> tuple[str, ...]:
    """The names requests may use: those asked for, or the model's own without folder and ending."""
    if args.served_model_name:
        return args.served_model_name
    path = Path(os.path.expanduser(args.model))
    if path.suffix.lower() == ".gguf":
        return (path.stem,)
    return (path.resolve().name if path.is_dir() else args.model,)


def _read_template(path: Path) -> str:
    if path.exists() and not path.is_file():  # a device would be read for ever
        raise UsageError(f"chat_template (--chat-template): {path} is no file", param="chat_template")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(
            f"chat_template (--chat-template): cannot read {path}: {exc}", param="chat_template"
        ) from exc
