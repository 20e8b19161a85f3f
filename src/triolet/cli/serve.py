"""``triolet serve [model] [flags]``: the HTTP server in the foreground until SIGTERM or SIGINT.

Knows nothing of HTTP: it makes a ``ServeArgs`` and hands it to whatever serves the shape that these ask for.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from triolet.args import ServeArgs
from triolet.cli.console import set_up_access_log, set_up_logging
from triolet.cli.event_loop import run as run_on_loop
from triolet.cli.explain import explain
from triolet.cli.options import add_options, collect_options
from triolet.errors import UsageError

__all__ = ["DESCRIPTION", "SUMMARY", "add_arguments", "run", "serve_args"]

SUMMARY = "serve a model over HTTP (OpenAI-compatible)"
DESCRIPTION = (
    "Serve a model over HTTP with the OpenAI API. SIGTERM or SIGINT lets requests under way finish; "
    "a second signal ends at once."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model_argument",
        nargs="?",
        metavar="MODEL",
        help="the model to serve, the same as --model",
    )
    parser.add_argument(
        "--explain", action="store_true", help="show processes and ports of these options, and start nothing"
    )
    add_options(parser, ServeArgs)


def serve_args(namespace: argparse.Namespace) -> ServeArgs:
    """The options, with MODEL in its place. Raises :class:`UsageError`."""
    positional = namespace.model_argument
    if positional is not None:
        if getattr(namespace, "model", positional) != positional:
            raise UsageError(
                f"two models are named, {positional!r} and --model {namespace.model!r}: keep one of them",
                param="model",
            )
        namespace.model = positional
    return collect_options(ServeArgs, namespace)


def run(namespace: argparse.Namespace) -> int:
    args = serve_args(namespace)
    if namespace.explain:
        print(*explain(args), sep="\n")
        return 0
    set_up_logging(args.log_level)
    if args.access_log != "off":
        set_up_access_log()
    with _leaving_on_signals():
        return run_on_loop(_serve_of(args), args)


@contextmanager
def _leaving_on_signals() -> Iterator[None]:
    """End with exit code 0 at once, until there is a server that takes signals itself.

    Importing what serves takes a second on a busy machine, and nothing is there yet that had to be given
    back.
    """
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: os._exit(0)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _serve_of(args: ServeArgs) -> Callable[[ServeArgs], Awaitable[int]]:
    """What serves these options; nothing is imported that others would need."""
    shape = args.launch_shape()
    if shape.mode == "headless":
        from triolet.cluster.headless import serve_headless

        return serve_headless
    if shape.num_api_servers > 1:
        from triolet.web.launch import launch

        return launch
    if shape.mode == "worker":
        from triolet.cluster.shard_node import serve_shards

        return serve_shards
    from triolet.web.serve import serve

    return serve
