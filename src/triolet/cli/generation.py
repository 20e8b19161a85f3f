"""What ``chat`` and ``complete`` share: their options, and the choice of a running server or a loaded model.

Knows neither HTTP nor the engine.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Protocol

from triolet.args import EngineArgs
from triolet.cli.console import set_up_logging
from triolet.cli.options import add_options, collect_options
from triolet.errors import UsageError
from triolet.option_fields import flag_of

__all__ = [
    "DEFAULT_URL",
    "TextModel",
    "add_generation_options",
    "open_model",
    "print_pieces",
    "request_options",
]

DEFAULT_URL = "http://127.0.0.1:8000/v1"

_REQUEST_OPTIONS: tuple[tuple[str, type, str, str], ...] = (
    ("max_tokens", int, "N", "Most tokens to generate; the server's own limit if not given."),
    ("temperature", float, "X", "0 always takes the likeliest token; more is more varied."),
    ("top_p", float, "X", "Sample among the likeliest tokens that make up this share of the probability."),
    ("seed", int, "N", "Seed of the sampling, to get the same answer again."),
)


Pieces = Generator[str, None, None]


class TextModel(Protocol):
    """What generates text, here or elsewhere. Closing an iterator early ends its request."""

    def complete(self, prompt: str, options: Mapping[str, Any]) -> Pieces: ...

    def chat(self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]) -> Pieces: ...


def add_generation_options(parser: argparse.ArgumentParser) -> None:
    """Give ``parser`` the options of a request, of the server to ask, and of a model loaded instead."""
    sampling = parser.add_argument_group("request options")
    for name, kind, metavar, text in _REQUEST_OPTIONS:
        sampling.add_argument(flag_of(name), dest=f"request_{name}", type=kind, metavar=metavar, help=text)
    server = parser.add_argument_group("server options")
    server.add_argument(
        "--url", metavar="URL", default=DEFAULT_URL, help=f"address of the server (default: {DEFAULT_URL})"
    )
    server.add_argument(
        "--api-key", metavar="KEY", help="key to send; TRIOLET_API_KEY in the environment if not given"
    )
    server.add_argument(
        "--offline", action="store_true", help="ask no server: load the model here, with the options below"
    )
    add_options(parser, EngineArgs, omit=("seed",))


def request_options(namespace: argparse.Namespace) -> dict[str, Any]:
    """The fields of the request that were given."""
    values = {name: getattr(namespace, f"request_{name}") for name, *_ in _REQUEST_OPTIONS}
    return {name: value for name, value in values.items() if value is not None}


@contextmanager
def open_model(namespace: argparse.Namespace) -> Iterator[TextModel]:
    """The model that the command line asks for. Raises :class:`UsageError`, ``ModelLoadError``."""
    if namespace.offline:
        set_up_logging("info")
        from triolet.cli.local import LocalModel
        from triolet.llm_engine import LLMEngine

        with LLMEngine(collect_options(EngineArgs, namespace)) as engine:
            yield LocalModel(engine)
        return
    for field in fields(EngineArgs):
        if field.name != "model" and hasattr(namespace, field.name):
            raise UsageError(
                f"{flag_of(field.name)} is an option of a model loaded here: add --offline, or give it to "
                "the server",
                param=field.name,
            )
    from triolet.cli.remote import RemoteModel

    api_key = namespace.api_key or os.environ.get("TRIOLET_API_KEY")
    yield RemoteModel(namespace.url, model=getattr(namespace, "model", None), api_key=api_key)


def print_pieces(pieces: Iterable[str]) -> str:
    """Print pieces as they come, then end the line; the whole text is returned."""
    text = []
    for piece in pieces:
        text.append(piece)
        sys.stdout.write(piece)
        sys.stdout.flush()
    print()
    return "".join(text)
