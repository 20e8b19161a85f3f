"""HTTPS by several processes on one port."""

from __future__ import annotations

import os
import signal
import ssl
from pathlib import Path

import httpx
import pytest
import trustme
from tests.integration.shapes import running, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_api_servers_have_the_newest_certificate(byte_llama: Path, tmp_path: Path) -> None:
    ca, file = trustme.CA(), tmp_path / "pair.pem"
    ca.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(file)
    client = ssl.create_default_context()
    ca.configure_trust(client)
    options = ("--api-server-count", "2", "--ssl-certfile", str(file))
    with running(byte_llama, options, is_ready=False) as (server,):
        url = server.wait_line(r"is ready at (https://127\.0\.0\.1:\d+)")[1]
        body = {"model": "tiny", "prompt": "a", "max_tokens": 4, "ignore_eos": True}
        assert httpx.post(f"{url}/v1/completions", json=body, verify=client).status_code == 200
        renewed = ca.issue_cert("127.0.0.1")
        renewed.private_key_and_cert_chain_pem.write_to_path(file)
        os.utime(file, (1_000_000_000, 1_000_000_000))
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        # Which of the two takes a connection is not ours to choose, but each says when it has read the file.
        wait_until(
            lambda: (
                ssl.get_server_certificate(address) != "" and server.log.count("new connections get") == 2
            ),
            30,
            lambda: server.log,
        )
        assert ssl.get_server_certificate(address).encode() == renewed.cert_chain_pems[0].bytes()
        server.signal(signal.SIGTERM)
        assert server.wait(15) == 0


def test_a_bad_file_is_told_before_anything_starts(byte_llama: Path, tmp_path: Path) -> None:
    with running(
        byte_llama, ("--ssl-certfile", str(tmp_path / "none.pem"), "--api-server-count", "2"), is_ready=False
    ) as (server,):
        assert server.wait(30) == 2
    assert f"ssl_certfile (--ssl-certfile) {tmp_path}/none.pem: cannot be read" in server.log
    assert "Traceback" not in server.log
