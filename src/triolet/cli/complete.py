"""``triolet complete [PROMPT]``: print the model's continuation of a text."""

from __future__ import annotations

import argparse
import sys

from triolet.cli.generation import add_generation_options, open_model, print_pieces, request_options

__all__ = ["DESCRIPTION", "SUMMARY", "add_arguments", "run"]

SUMMARY = "continue a text"
DESCRIPTION = "Print the model's continuation of a text as it is generated."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="the text; standard input if not given")
    add_generation_options(parser)


def run(namespace: argparse.Namespace) -> int:
    prompt = sys.stdin.read() if namespace.prompt is None else namespace.prompt
    with open_model(namespace) as model:
        print_pieces(model.complete(prompt, request_options(namespace)))
    return 0
