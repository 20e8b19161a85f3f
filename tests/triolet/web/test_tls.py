"""The certificate that HTTPS is served with: agreed on in memory, without sockets."""

from __future__ import annotations

import logging
import os
import ssl
import subprocess
from pathlib import Path

import pytest
import trustme

from triolet.args import ServeArgs
from triolet.errors import UsageError
from triolet.web.tls import ServerTls, open_tls

NOW = 2_000_000_000.0
CLIENT_CA = trustme.CA()


class Files:
    """A certificate and its key on disk, last written at a time of the test's choosing."""

    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        self.cert, self.key, self.clients = folder / "cert.pem", folder / "key.pem", folder / "clients.pem"
        self.write()
        CLIENT_CA.cert_pem.write_to_path(self.clients)
        self.age(100)

    def write(self) -> bytes:
        """Issue another; its certificate in DER form."""
        issued = self.ca.issue_cert("localhost")
        self.cert.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
        self.key.write_bytes(issued.private_key_pem.bytes())
        return ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode())

    def age(self, seconds: float) -> None:
        for path in (self.cert, self.key, self.clients):
            os.utime(path, (NOW - seconds, NOW - seconds))

    def open(self, *, has_clients: bool = False) -> ServerTls:
        return ServerTls(self.cert, self.key, self.clients if has_clients else None, wall_clock=lambda: NOW)

    def client(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.ca.configure_trust(context)
        return context


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def agree(tls: ServerTls, client: ssl.SSLContext) -> ssl.SSLObject:
    """The client's side after the handshake, which the server has finished as well."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(down, up, server_hostname="localhost")
    theirs = tls.context.wrap_bio(up, down, server_side=True)
    pending = [ours, theirs]
    for _ in range(6):
        for side in list(pending):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            pending.remove(side)
    assert pending == []
    return ours


def test_what_is_agreed_on(files: Files) -> None:
    connection = agree(files.open(), files.client())
    assert connection.version() == "TLSv1.3"
    assert connection.getpeercert()["subjectAltName"] == (("DNS", "localhost"),)  # type: ignore[index]
    client = files.client()
    client.set_alpn_protocols(["h2", "http/1.1"])
    assert agree(files.open(), client).selected_alpn_protocol() == "http/1.1"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_nothing_older_than_tls_1_2(files: Files) -> None:
    client = files.client()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert agree(files.open(), client).version() == "TLSv1.2"
    client.minimum_version = client.maximum_version = ssl.TLSVersion.TLSv1_1
    client.set_ciphers("DEFAULT@SECLEVEL=0")
    with pytest.raises(ssl.SSLError):
        agree(files.open(), client)


def test_changed_files_hold_for_the_next_handshake(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    tls = files.open()
    before = agree(tls, files.client()).getpeercert(binary_form=True)
    renewed = files.write()
    files.age(0.2)
    assert agree(tls, files.client()).getpeercert(binary_form=True) == before, "they may still be written to"
    files.age(5)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            assert agree(tls, files.client()).getpeercert(binary_form=True) == renewed
    assert len(caplog.records) == 1


def test_a_bad_pair_changes_nothing_and_is_told_once(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    tls = files.open()
    before = agree(tls, files.client()).getpeercert(binary_form=True)
    old_key = files.key.read_bytes()
    renewed = files.write()
    new_key = files.key.read_bytes()
    files.key.write_bytes(old_key)
    files.age(5)
    for _ in range(3):
        assert agree(tls, files.client()).getpeercert(binary_form=True) == before
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "(--ssl-keyfile)" in caplog.text
    files.key.unlink()
    assert agree(tls, files.client()).getpeercert(binary_form=True) == before
    assert "cannot be read" in caplog.records[-1].getMessage()
    files.key.write_bytes(new_key)
    files.age(4)
    assert agree(tls, files.client()).getpeercert(binary_form=True) == renewed


def test_asked_to_it_reads_at_once(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    tls = files.open()
    renewed = files.write()
    files.age(0)
    tls.reload()
    assert agree(tls, files.client()).getpeercert(binary_form=True) == renewed
    files.cert.write_text("")
    for _ in range(2):
        tls.reload()
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
    assert agree(tls, files.client()).getpeercert(binary_form=True) == renewed


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_clients_must_show_a_certificate(files: Files, version: ssl.TLSVersion) -> None:
    tls = files.open(has_clients=True)
    for authority, is_let_in in ((None, False), (trustme.CA(), False), (CLIENT_CA, True)):
        client = files.client()
        client.minimum_version = client.maximum_version = version
        if authority is not None:
            authority.issue_cert("client@example.org").configure_cert(client)
        if is_let_in:
            assert agree(tls, client).version()
        else:
            with pytest.raises(ssl.SSLError):
                agree(tls, client)


def test_new_authorities_of_clients_hold_as_well(files: Files) -> None:
    tls, other = files.open(has_clients=True), trustme.CA()
    client = files.client()
    other.issue_cert("client@example.org").configure_cert(client)
    with pytest.raises(ssl.SSLError):
        agree(tls, client)
    other.cert_pem.write_to_path(files.clients)
    tls.reload()
    assert agree(tls, client).version()


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("cert", None, "ssl_certfile (--ssl-certfile) {}: cannot be read: No such file"),
        ("cert", "x", "ssl_certfile (--ssl-certfile) {}: holds no certificates"),
        ("key", None, "ssl_keyfile (--ssl-keyfile) {}: cannot be read: No such file"),
        ("key", "x", "ssl_keyfile (--ssl-keyfile) {}: holds no private key"),
        ("clients", None, "ssl_ca_certs (--ssl-ca-certs) {}: cannot be read: No such file"),
        ("clients", "-----BEGIN CERTIFICATE-----\nx", "ssl_ca_certs (--ssl-ca-certs) {}: holds no certific"),
    ],
)
def test_what_is_wrong_with_a_file(files: Files, name: str, content: str | None, problem: str) -> None:
    path: Path = getattr(files, name)
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError) as caught:
        files.open(has_clients=True)
    assert problem.format(path) in caught.value.message
    assert caught.value.param == f"ssl_{'ca_certs' if name == 'clients' else name + 'file'}"


def test_a_key_of_another_certificate_or_with_a_password(files: Files) -> None:
    old_key = files.key.read_bytes()
    files.write()
    command = ["openssl", "pkey", "-in", str(files.key), "-aes256", "-passout", "pass:secret"]
    locked = subprocess.run(command, capture_output=True, check=True).stdout
    for content, problem in ((old_key, "is not the key of the certificate in"), (locked, "has a password")):
        files.key.write_bytes(content)
        with pytest.raises(UsageError, match=problem) as caught:
            files.open()
        assert caught.value.param == "ssl_keyfile"


def test_one_file_may_hold_both(files: Files) -> None:
    files.cert.write_bytes(files.key.read_bytes() + files.cert.read_bytes())
    tls = open_tls(ServeArgs(ssl_certfile=files.cert))
    assert tls is not None
    assert agree(tls, files.client()).version()
    assert open_tls(ServeArgs()) is None
    files.cert.write_bytes(files.clients.read_bytes())
    with pytest.raises(UsageError, match="no private key"):
        open_tls(ServeArgs(ssl_certfile=files.cert))
