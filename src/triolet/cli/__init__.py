"""The command line: ``triolet serve``, ``chat``, ``complete`` and ``models``; ``python -m server`` serves.

Options come from the fields of :class:`~triolet.args.EngineArgs` and :class:`~triolet.args.ServeArgs`. Torch
and the web framework are imported when a command that needs them runs, so that ``--help`` is quick.
"""

from triolet.cli.command import main, serve_main

__all__ = ["main", "serve_main"]
