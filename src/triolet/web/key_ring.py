"""The keys that open the server, those of a file read again whenever it changes.

Knows files and clocks, and nothing of requests.
"""

from __future__ import annotations

import hmac
import logging
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from triolet.errors import UsageError
from triolet.web.api_keys import ApiKey, digest_of, parse_key_file

__all__ = ["KeyRing"]

logger = logging.getLogger("triolet.web")

LOOK_SECONDS = 1.0
"""How long a change of the file may go unnoticed."""


class KeyRing:
    """``fixed`` keys, and those in a file. Raises :class:`UsageError` for a file that cannot be used.

    A file that becomes unusable later changes nothing: the keys read last go on to hold, and the log says so.
    """

    def __init__(
        self,
        fixed: Sequence[ApiKey] = (),
        path: Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fixed = tuple(fixed)
        self._path = path
        self._clock = clock
        self._looked_at = clock()
        self._version: tuple[int, ...] | None = None
        self._from_file: tuple[ApiKey, ...] = ()
        if path is not None:
            self._read(path)

    @property
    def is_open(self) -> bool:
        """Whether the ordinary routes ask for no key. A file that holds none yet closes them all the same."""
        return self._path is None and all(key.is_admin for key in self._fixed)

    @property
    def has_admin(self) -> bool:
        """Whether there is a key to the control routes."""
        self._look()
        return any(key.is_admin for key in self._keys)

    def find(self, given: str) -> ApiKey | None:
        """The key that was given; None if it opens nothing. Takes the same time wherever keys differ."""
        self._look()
        digest = digest_of(given)
        matches = [key for key in self._keys if hmac.compare_digest(key.digest, digest)]
        return matches[0] if matches else None

    @property
    def _keys(self) -> tuple[ApiKey, ...]:
        return self._fixed + self._from_file

    def _look(self) -> None:
        """Read the file again if it has changed; the question costs microseconds, and once a second."""
        if self._path is None or self._clock() - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = self._clock()
        try:
            if self._version != _version(self._path):
                self._read(self._path)
                logger.info("%s has changed: %d keys", self._path, len(self._from_file))
        except (UsageError, OSError) as error:
            logger.error("the API keys stay as they were: %s", error)

    def _read(self, path: Path) -> None:
        try:
            self._version = _version(path)  # before its contents: what changes meanwhile is read again
            data = path.read_bytes()
            mode = path.stat().st_mode
        except OSError as error:
            raise UsageError(
                f"--api-key-file {path}: cannot be read: {error.strerror}", param="api_key_file"
            ) from None
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            logger.warning("%s may be read by other users; chmod 600 keeps its keys from them", path)
        keys = parse_key_file(data, str(path))
        names = {key.name for key in self._fixed}
        twice = [key.name for key in keys if key.name in names]
        if twice:
            raise UsageError(
                f"--api-key-file {path}: {twice[0]!r} is the name of another key, too", param="api_key_file"
            )
        self._from_file = tuple(keys)


def _version(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return (found.st_mtime_ns, found.st_size, found.st_ino)
