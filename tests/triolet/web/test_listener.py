"""Our own listening socket."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from triolet.errors import UsageError
from triolet.web.listener import (
    NOT_SENT_BYTES,
    USER_TIMEOUT_MILLISECONDS,
    address_url,
    open_listener,
    open_unix_listener,
)


def test_accepted_connections_inherit_the_options() -> None:
    with (
        open_listener("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        accepted, _ = listener.accept()
        with accepted:
            tcp = socket.IPPROTO_TCP
            assert accepted.getsockopt(tcp, socket.TCP_NOTSENT_LOWAT) == NOT_SENT_BYTES
            assert accepted.getsockopt(tcp, socket.TCP_USER_TIMEOUT) == USER_TIMEOUT_MILLISECONDS
            assert accepted.getsockopt(tcp, socket.TCP_NODELAY)
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert client.recv(1) == b""


def test_port_zero_is_any_free_port_and_the_url_says_which() -> None:
    with open_listener("127.0.0.1", 0) as first, open_listener("0.0.0.0", 0) as second:
        assert address_url(first) == f"http://127.0.0.1:{first.getsockname()[1]}"
        assert address_url(second) == f"http://127.0.0.1:{second.getsockname()[1]}"


def test_version_6_addresses_are_written_in_brackets() -> None:
    try:
        listener = open_listener("::1", 0)
    except UsageError:
        pytest.skip("this machine has no IPv6")
    with listener:
        assert address_url(listener) == f"http://[::1]:{listener.getsockname()[1]}"


def test_a_taken_port_is_named() -> None:
    with open_listener("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(UsageError, match=rf"--port\) {port} on 127\.0\.0\.1 is taken") as caught:
            open_listener("127.0.0.1", port)
    assert caught.value.param == "port"


def test_a_unix_socket_is_for_the_user_and_the_group(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with open_unix_listener(path) as listener, socket.socket(socket.AF_UNIX) as client:
        assert path.stat().st_mode & 0o777 == 0o660
        client.connect(str(path))
        assert address_url(listener) == "http://localhost"
        with pytest.raises(UsageError, match="another server listens there") as caught:
            open_unix_listener(path)
    assert caught.value.param == "uds"
    assert path.is_socket(), "its server is dead"
    open_unix_listener(path).close()


@pytest.mark.parametrize("name", ["no/folder", "file", "x" * 200])
def test_a_path_that_cannot_be_used_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("dear to somebody")
    with pytest.raises(UsageError, match=r"--uds\) .*: cannot listen there"):
        open_unix_listener(tmp_path / name)
    assert (tmp_path / "file").read_text() == "dear to somebody"


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "x" * 300])
def test_an_address_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_listener(host, 0)
    assert caught.value.param == "host"
