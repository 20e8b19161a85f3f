"""What the routes are told besides the engine: limits, the key, the clock, whether the server is leaving."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from triolet.web.farewells import Farewells
from triolet.web.peers import NoPeers, Peers

__all__ = ["WebSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """Options of the routes. ``ping_interval`` is in seconds. Without ``api_key`` (one key, or several
    with names: ``"alice:one bob:two"``) and ``api_key_file`` the routes are open, and without an admin key
    those that control the engine are shut.

    ``is_leaving`` tells whether the server is about to go: ``/ready`` is off from then on, and what is ended
    early is answered with an error. ``farewells`` are what it is to wait for then. ``peers`` are the other
    servers of the same engines. ``has_page``: people find a page at ``/``.
    """

    api_key: str | None = field(default=None, repr=False)
    admin_api_key: str | None = field(default=None, repr=False)
    api_key_file: Path | None = None
    has_page: bool = True
    max_body_bytes: int = 4 * 2**20
    max_num_messages: int = 4096
    response_store_size: int = 1000
    response_store_bytes: int = 64 * 2**20
    ping_interval: float = 15.0
    clock: Callable[[], float] = time.time
    is_leaving: Callable[[], bool] = lambda: False
    peers: Peers = field(default_factory=NoPeers)
    farewells: Farewells = field(default_factory=Farewells)
