"""Entry points: pick the command, run it, and turn what it raises into one line and an exit code.

Exit codes: 0 done, 1 it failed, 2 the command line is wrong, 130 interrupted. Knows what no command does.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from triolet.cli import chat, complete, models, serve
from triolet.cli.options import OptionParser
from triolet.errors import TrioletError, UsageError
from triolet.openmp import wait_without_spinning

__all__ = ["main", "make_parser", "serve_main"]

_COMMANDS: dict[str, Any] = {"serve": serve, "chat": chat, "complete": complete, "models": models}


class _Version(argparse.Action):
    """``--version``, looked up only when asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, **_: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, help="show the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from triolet import __version__

        print(f"triolet {__version__}")
        parser.exit(0)


def main(argv: Sequence[str] | None = None) -> int:
    """``triolet COMMAND …``. Returns the exit code; ``--help`` and ``--version`` raise ``SystemExit(0)``."""
    return _run(make_parser(), argv)


def serve_main(argv: Sequence[str] | None = None) -> int:
    """``python -m server …``: the command ``serve`` alone."""
    parser = OptionParser(prog="python -m server", description=serve.DESCRIPTION)
    _add_command(parser, serve)
    return _run(parser, argv)


def make_parser() -> argparse.ArgumentParser:
    """The parser of ``triolet``, with every command."""
    parser = OptionParser(prog="triolet", description="An LLM inference server and library.")
    parser.add_argument("--version", action=_Version, dest="version")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, module in _COMMANDS.items():
        _add_command(commands.add_parser(name, help=module.SUMMARY, description=module.DESCRIPTION), module)
    return parser


def _add_command(parser: argparse.ArgumentParser, module: Any) -> None:
    parser.add_argument("--version", action=_Version, dest="version")
    module.add_arguments(parser)
    parser.set_defaults(run=module.run)


def _run(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    _open_standard_files()
    wait_without_spinning(os.environ)
    try:
        namespace = parser.parse_args(argv)
        run: Callable[[argparse.Namespace], int] = namespace.run
        return run(namespace)
    except UsageError as error:
        _complain(f"{parser.prog}: {error}")
        return 2
    except TrioletError as error:
        _complain(f"{parser.prog}: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (`triolet complete … | head`); the exit must not complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    finally:
        _give_up_unwritten()


def _complain(message: str) -> None:
    """Write it to the standard error. Where nothing can be written the exit code has to tell alone."""
    with suppress(OSError):  # a full disk, or a reader that has gone
        print(message, file=sys.stderr, flush=True)


def _give_up_unwritten() -> None:
    """Drop what the standard error could not take, or the interpreter would exit with 120 because of it."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _open_standard_files() -> None:
    """Open the standard files that were closed when the program was started, on the null device.

    Otherwise their numbers would go to sockets: what is meant for a terminal would be sent to clients, and
    uvloop aborts the process when it closes one.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - it stays open
