"""The keys that open the server, those of a file read again whenever it changes.

Knows files and clocks, and nothing of requests.
"""

from __future__ import annotations

import hmac
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from triolet.errors import UsageError
from triolet.web.api_keys import ApiKey, check_distinct, digest_of, parse_key_file

__all__ = ["KeyRing"]

logger = logging.getLogger("triolet.web")

LOOK_SECONDS = 1.0
"""How long a change of the file may go unnoticed, once it is at rest."""
REST_SECONDS = 1.0
"""How long nothing must have been written to a file before it is taken for whole."""


class KeyRing:
    """``fixed`` keys, and those in a file. Raises :class:`UsageError` for keys that cannot be used together,
    and for a file that cannot be used.

    A file that becomes unusable or empty later changes nothing: the keys read last go on to hold, and the log
    says so once. A file counts as changed once it has not been written to for a second: what is written in
    place is not taken for whole before it is. ``clock`` is monotonic, ``wall_clock`` that of the file system.
    """

    def __init__(
        self,
        fixed: Sequence[ApiKey] = (),
        path: Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._fixed = tuple(fixed)
        self._path = path
        self._clock = clock
        self._wall_clock = wall_clock
        self._looked_at = clock()
        self._version: tuple[int, ...] | None = None
        self._complaint: str | None = None
        self._from_file: tuple[ApiKey, ...] = ()
        check_distinct(self._fixed, "admin_api_key")
        if path is not None:
            with _readable(path):
                found, data = path.stat(), path.read_bytes()
            self._take(path, data, found)

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
            self._read_if_changed(self._path)
        except UsageError as error:
            self._complain(error.message)

    def _complain(self, complaint: str) -> None:
        """Say what is wrong once, however often the file is looked at."""
        if complaint != self._complaint:
            logger.error("the API keys stay as they were: %s", complaint)
        self._complaint = complaint

    def _read_if_changed(self, path: Path) -> None:
        with _readable(path):
            found = path.stat()
            is_at_rest = abs(self._wall_clock() - found.st_mtime) >= REST_SECONDS
            if not is_at_rest or _version(found) == self._version:
                return
            data = path.read_bytes()
            if _version(path.stat()) != _version(found):
                return  # written to meanwhile
        if not data:
            raise UsageError(
                f"--api-key-file {path}: is empty, as while it is written; to take all keys away leave a "
                "line with a # in it",
                param="api_key_file",
            )
        self._take(path, data, found)
        logger.info("%s has changed: %d keys", path, len(self._from_file))

    def _take(self, path: Path, data: bytes, found: os.stat_result) -> None:
        keys = parse_key_file(data, str(path))
        check_distinct([*self._fixed, *keys], "api_key_file")
        self._from_file = tuple(keys)
        self._version = _version(found)
        self._complaint = None
        if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            logger.warning("%s may be read by other users; chmod 600 keeps its keys from them", path)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"--api-key-file {path}: cannot be read: {error.strerror}", param="api_key_file"
        ) from None


def _version(found: os.stat_result) -> tuple[int, ...]:
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
