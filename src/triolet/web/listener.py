"""The listening socket, made by us so that accepted connections inherit the options a streaming server needs.

Knows sockets and nothing of HTTP.
"""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Any

from triolet.args import ServeArgs
from triolet.errors import UsageError

__all__ = ["address_url", "listen", "open_listener", "open_unix_listener"]

BACKLOG = 1024
NOT_SENT_BYTES = 16 * 1024
"""What the kernel takes before a reader that has stopped reading holds up the stream (instead of 4 MB)."""
USER_TIMEOUT_MILLISECONDS = 10_000
"""How long data may stay unacknowledged before a stalled or vanished peer is given up."""


def listen(args: ServeArgs) -> socket.socket:
    """The socket to serve on. Raises :class:`UsageError` for an address that cannot be had."""
    return open_listener(args.host, args.port) if args.uds is None else open_unix_listener(args.uds)


def open_listener(host: str, port: int) -> socket.socket:
    """Bind and listen; ``port`` 0 picks a free one. Raises :class:`UsageError` naming the address."""
    family, address = _resolve(host, port)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        _set_options(listener)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _explain(error, host, port) from error
    return listener


def open_unix_listener(path: Path) -> socket.socket:
    """Bind and listen on a path, for this user and its group. A socket that a dead server left is replaced.

    Raises :class:`UsageError` naming the path.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_if_dead(path)
        listener.bind(str(path))
        path.chmod(0o660)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        problem = error.strerror or str(error)
        raise UsageError(f"uds (--uds) {path}: cannot listen there: {problem}", param="uds") from error
    return listener


def address_url(listener: socket.socket, scheme: str = "http") -> str:
    """``http://host:port`` as a client on this machine reaches it; ``http://localhost`` on a Unix socket."""
    if listener.family == socket.AF_UNIX:
        return f"{scheme}://localhost"
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _remove_if_dead(path: Path) -> None:
    """Raises OSError unless the path is free, or becomes it."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        else:
            raise OSError(errno.EADDRINUSE, "another server listens there")


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise UsageError(
            f"host (--host) {host!r} is no address of this machine: {error}", param="host"
        ) from None
    family, _, _, _, address = found[0]
    return family, address


def _set_options(listener: socket.socket) -> None:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in (
        ("TCP_NOTSENT_LOWAT", NOT_SENT_BYTES),
        ("TCP_USER_TIMEOUT", USER_TIMEOUT_MILLISECONDS),
        ("TCP_KEEPIDLE", 30),
        ("TCP_KEEPINTVL", 10),
        ("TCP_KEEPCNT", 3),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            listener.setsockopt(socket.IPPROTO_TCP, option, value)


def _explain(error: OSError, host: str, port: int) -> UsageError:
    if error.errno == errno.EADDRINUSE:
        return UsageError(
            f"port (--port) {port} on {host} is taken by another process; choose another, or 0 for any",
            param="port",
        )
    if error.errno == errno.EACCES:
        return UsageError(
            f"port (--port) {port} on {host} may not be used by this user; choose one above 1023",
            param="port",
        )
    return UsageError(f"cannot listen on {host} port {port}: {error.strerror}", param="host")
