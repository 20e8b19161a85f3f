"""Our own listening socket."""

from __future__ import annotations

import socket

import pytest

from triolet.errors import UsageError
from triolet.web.listener import NOT_SENT_BYTES, USER_TIMEOUT_MILLISECONDS, address_url, open_listener


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


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "x" * 300])
def test_an_address_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_listener(host, 0)
    assert caught.value.param == "host"
