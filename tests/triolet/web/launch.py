"""Serves a fake engine in its own process: ``python -m tests.triolet.web.launch BACKEND [NAME=NUMBER …]``.

A prompt that holds ``die`` kills the engine. Lines for the user go to the output as in the real server.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import anyio
from tests.triolet.web.fake_engine import FakeEngine

from triolet.args import ServeArgs
from triolet.core.loop import backend_options
from triolet.errors import ModelLoadError
from triolet.web.listener import open_listener
from triolet.web.serve import Server


class MortalEngine(FakeEngine):
    async def submit(self, prompt: Any, params: Any, **options: Any) -> Any:
        stream = await super().submit(prompt, params, **options)
        if prompt == "die":
            self.die("the device is on fire")
        return stream


def main() -> int:
    backend, *pairs = sys.argv[1:]
    options = {name: float(value) for name, _, value in (pair.partition("=") for pair in pairs)}
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    hold_at = options.pop("hold_at", None)
    engine = MortalEngine(
        hold_at=None if hold_at is None else int(hold_at),
        is_endless=bool(options.pop("is_endless", 0)),
        is_loading_held=bool(options.pop("is_loading_held", 0)),
        break_with=ModelLoadError("no such model") if options.pop("is_broken", 0) else None,
    )
    args = ServeArgs(backend=backend, port=0, **options)  # type: ignore[arg-type]
    listener = open_listener(args.host, args.port)
    sys.stdout.write(f"port {listener.getsockname()[1]}\n")
    sys.stdout.flush()
    server = Server(args, engine, listener)
    return anyio.run(server.run, backend=backend, backend_options=backend_options(backend))


if __name__ == "__main__":
    sys.exit(main())
