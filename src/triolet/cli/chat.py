"""``triolet chat [MESSAGE]``: one answer, or a conversation when standard input is a terminal."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from typing import Any

from triolet.cli.generation import (
    TextModel,
    add_generation_options,
    open_model,
    print_pieces,
    request_options,
)
from triolet.errors import UsageError

__all__ = ["DESCRIPTION", "SUMMARY", "add_arguments", "run"]

SUMMARY = "talk with a model"
DESCRIPTION = (
    "Answer one message, or hold a conversation when no message is given. In a conversation Ctrl-C stops an "
    "answer, /reset forgets what was said, and /exit or Ctrl-D leaves."
)

Messages = list[dict[str, str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "message",
        nargs="?",
        metavar="MESSAGE",
        help="what to ask; a conversation, or standard input, if not given",
    )
    parser.add_argument("--system", metavar="TEXT", help="instructions that stand before the conversation")
    add_generation_options(parser)


def run(namespace: argparse.Namespace) -> int:
    messages: Messages = [{"role": "system", "content": namespace.system}] if namespace.system else []
    message, options = namespace.message, request_options(namespace)
    if message is None and not sys.stdin.isatty():
        message = sys.stdin.read()
    if message is not None and not message.strip():
        raise UsageError("message: is empty; say something, or leave it out for a conversation")
    with open_model(namespace) as model:
        if message is None:
            _converse(model, messages, options)
        else:
            print_pieces(model.chat([*messages, {"role": "user", "content": message}], options))
    return 0


def _converse(model: TextModel, opening: Messages, options: dict[str, Any]) -> None:
    messages = list(opening)
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            print()
            return
        if line == "/exit":
            return
        if line == "/reset":
            messages = list(opening)
        elif line:
            _take_turn(model, messages, line, options)


def _take_turn(model: TextModel, messages: Messages, line: str, options: dict[str, Any]) -> None:
    """Ask and print; an interrupted exchange is forgotten, as the model never finished its side of it."""
    question = {"role": "user", "content": line}
    try:
        with closing(model.chat([*messages, question], options)) as pieces:
            answer = print_pieces(pieces)
    except KeyboardInterrupt:
        print()
        return
    messages += [question, {"role": "assistant", "content": answer}]
