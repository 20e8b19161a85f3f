"""The certificate that HTTPS is served with, read again whenever its files change.

Knows files and ``ssl``, and neither an event loop nor HTTP.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from triolet.args import ServeArgs
from triolet.errors import UsageError
from triolet.option_fields import flag_of

__all__ = ["ServerTls", "open_tls"]

logger = logging.getLogger("triolet.web")

REST_SECONDS = 1.0
"""How long nothing must have been written to the files before they are taken for whole."""


class ServerTls:
    """The newest certificate for each handshake, of TLS 1.2 or later.

    ``keyfile`` None: ``certfile`` holds the key as well. With ``ca_certs`` clients must show a certificate
    that these authorities have signed. Raises :class:`UsageError` naming the flag of a file that cannot be
    used. Files that become unusable later change nothing: what was read last goes on to hold, and the log
    says so once. Files count as changed once they have not been written to for a second by ``wall_clock``,
    that of the file system. Connections that are open keep what they began with.
    """

    def __init__(
        self,
        certfile: Path,
        keyfile: Path | None = None,
        ca_certs: Path | None = None,
        *,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._certfile = certfile
        self._keyfile = keyfile
        self._ca_certs = ca_certs
        self._wall_clock = wall_clock
        self._paths = [path for path in (certfile, keyfile, ca_certs) if path is not None]
        self._complaint: str | None = None
        self._newest = self._load()
        self._version = self._find_version()
        self._context = self._load()
        self._context.sni_callback = self._on_hello

    @property
    def context(self) -> ssl.SSLContext:
        """What to make connections with, once and for all: it hands each handshake on to the newest."""
        return self._context

    def reload(self) -> None:
        """Read the files now, changed or not; the log says what came of it."""
        self._complaint = None
        self._take(self._find_version())

    def _on_hello(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        version = self._find_version()
        if version != self._version and self._is_at_rest(version):
            self._take(version)
        connection.context = self._newest

    def _take(self, version: tuple[tuple[int, ...], ...]) -> None:
        try:
            self._newest = self._load()
        except UsageError as error:
            if error.message != self._complaint:
                logger.error("the certificate stays as it was: %s", error.message)
            self._complaint = error.message
        else:
            self._version = version
            self._complaint = None
            logger.info("new connections get the certificate that %s holds now", self._certfile)

    def _is_at_rest(self, version: tuple[tuple[int, ...], ...]) -> bool:
        newest = max((times[0] for times in version if times), default=0)
        return abs(self._wall_clock() - newest / 1e9) >= REST_SECONDS

    def _find_version(self) -> tuple[tuple[int, ...], ...]:
        return tuple(_version(path) for path in self._paths)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        with _usable("ssl_certfile", self._certfile):
            _load_certificates(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._certfile)
        keyfile = self._keyfile or self._certfile
        with _usable("ssl_keyfile" if self._keyfile else "ssl_certfile", keyfile):
            _load_key(context, self._certfile, keyfile)
        if self._ca_certs is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            # A resumed session would be let in without another look at the client's certificate.
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
            with _usable("ssl_ca_certs", self._ca_certs):
                _load_certificates(context, self._ca_certs)
        return context


def open_tls(args: ServeArgs) -> ServerTls | None:
    """What ``--ssl-certfile`` and its like ask for. Raises :class:`UsageError` for a bad file."""
    if args.ssl_certfile is None:
        return None
    return ServerTls(args.ssl_certfile, args.ssl_keyfile, args.ssl_ca_certs)


def _load_certificates(context: ssl.SSLContext, path: Path) -> None:
    """Trust them. Raises OSError or ValueError for a file that holds none."""
    pem = path.read_bytes().decode("ascii", errors="replace")
    try:
        context.load_verify_locations(cadata=pem)
    except ssl.SSLError as error:
        raise ValueError("holds no certificates in PEM form") from error


def _load_key(context: ssl.SSLContext, certfile: Path, keyfile: Path) -> None:
    """Raises OSError or ValueError for a key that cannot be used with a good certificate."""
    keyfile.read_bytes()  # OpenSSL does not say which of the two cannot be read
    try:
        context.load_cert_chain(certfile, keyfile, password=_refuse_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ValueError(f"is not the key of the certificate in {certfile}") from error
        raise ValueError("holds no private key in PEM form") from error


def _refuse_password() -> str:
    raise ValueError("has a password; write it without: openssl pkey -in FILE -out NEW")


@contextmanager
def _usable(name: str, path: Path) -> Iterator[None]:
    """Says whose file it is that cannot be used."""
    try:
        yield
    except (OSError, ValueError) as error:
        problem = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        flag = flag_of(name)
        raise UsageError(f"{name} ({flag}) {path}: {problem}", param=name) from None


def _version(path: Path) -> tuple[int, ...]:
    """Changes whenever the file does; empty while there is none."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
