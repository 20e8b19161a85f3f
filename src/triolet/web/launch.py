"""Several API servers on one socket: opens it, and has a launcher run everything. Serves nothing itself."""

from __future__ import annotations

import time
from dataclasses import replace

from triolet.args import ServeArgs
from triolet.cluster.engine_cluster import launch_credentials
from triolet.cluster.launcher import Launcher
from triolet.cluster.model_places import find_models
from triolet.cluster.processes import SubprocessStarter
from triolet.cluster.reception import check_ports
from triolet.cluster.transport import SocketTransport
from triolet.web.console import write_line
from triolet.web.listener import listen
from triolet.web.tls import open_tls

__all__ = ["launch"]

API_SERVER_ROLE = "triolet.web.api_process:api_server"


async def launch(args: ServeArgs) -> int:
    """Serve until a signal or a failure; the exit code.

    Raises UsageError if an address or a certificate cannot be used, and what finding the model does, before
    any process starts. Runs in the main thread only.
    """
    credentials = launch_credentials(args)
    check_ports(args.launch_shape())
    open_tls(args)  # each API server will: what is wrong with the files is better said before there are any
    listener = listen(args)
    try:
        engine_args = await find_models(args)
        # API servers find the model's own files by its name, which is shown.
        args = replace(args, draft_model=engine_args.draft_model)
        return await Launcher(
            args, listener.fileno(), API_SERVER_ROLE, SubprocessStarter(backend=args.backend),
            SocketTransport(), credentials, announce=write_line, engine_args=engine_args,
            first_generation=int(time.time()),
        ).run()  # fmt: skip
    finally:
        listener.close()
        if args.uds is not None:
            args.uds.unlink(missing_ok=True)
