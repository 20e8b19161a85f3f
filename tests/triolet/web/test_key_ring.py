"""The keys that open the server, and a file of them that changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from triolet.errors import UsageError
from triolet.web.api_keys import parse_keys
from triolet.web.key_ring import KeyRing


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    """As another version of the file, even where the clock of the file system stands still."""
    number = path.stat().st_mtime_ns if path.exists() else 0
    path.write_text(text)
    path.chmod(mode)
    os.utime(path, ns=(number + 1, number + 1))
    return path


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def names(ring: KeyRing, *keys: str) -> list[str | None]:
    return [found.name if (found := ring.find(key)) else None for key in keys]


def test_without_keys_the_server_is_open_and_an_admin_key_does_not_close_it() -> None:
    assert KeyRing().is_open
    admins = KeyRing(parse_keys("k", option="admin_api_key", is_admin=True))
    assert (admins.is_open, admins.has_admin) == (True, True)
    ring = KeyRing(parse_keys("a:1 b:2", option="api_key"))
    assert (ring.is_open, ring.has_admin) == (False, False)
    assert names(ring, "1", "2", "a:1", "", "x") == ["a", "b", None, None, None]


def test_a_changed_file_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    path = write(tmp_path / "keys", "alice a1")
    ring = KeyRing(parse_keys("fixed:f", option="api_key"), path, clock=clock)
    assert names(ring, "f", "a1", "b1") == ["fixed", "alice", None]
    write(path, "bob b1\nroot r1 admin")
    assert names(ring, "a1", "b1") == ["alice", None], "it is looked at once a second"
    clock.now = 1.0
    assert names(ring, "a1", "b1") == [None, "bob"]
    assert ring.has_admin
    write(path, "bob")
    clock.now = 2.0
    assert names(ring, "b1") == ["bob"]
    path.unlink()
    clock.now = 3.0
    assert names(ring, "b1") == ["bob"]
    assert caplog.text.count("the API keys stay as they were") == 2


def test_a_wrong_file_is_told_of_once_and_read_when_it_is_right_whatever_its_date(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    path = write(tmp_path / "keys", "alice a1")
    date = path.stat().st_mtime_ns
    ring = KeyRing(path=path, clock=clock)
    path.write_text("bob b1 b")
    os.utime(path, ns=(date, date))
    for clock.now in (1.0, 2.0, 3.0):
        assert names(ring, "a1", "b1") == ["alice", None]
    path.write_text("bobby b1")
    os.utime(path, ns=(date, date))
    clock.now = 4.0
    assert names(ring, "a1", "b1") == [None, "bobby"], "of the same date and length"
    assert caplog.text.count("stay as they were") == 1


def test_a_file_that_could_not_be_opened_once_is_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    path = write(tmp_path / "keys", "alice a1")
    ring = KeyRing(path=path, clock=clock)
    write(path, "bob b1")

    def fail(self: Path) -> bytes:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", fail)
        clock.now = 1.0
        assert names(ring, "a1", "b1") == ["alice", None]
    clock.now = 2.0
    assert names(ring, "a1", "b1") == [None, "bob"]


def test_a_file_that_is_being_written_is_not_taken_for_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, wall_clock = Clock(), Clock()
    path = write(tmp_path / "keys", "alice a1\nbob b1\n")
    ring = KeyRing(path=path, clock=clock, wall_clock=wall_clock)
    for wall_clock.now, text in ((100.0, ""), (100.3, "# ours\n"), (100.9, "# ours\nbob b1\ncarol c")):
        path.write_text(text)
        os.utime(path, (wall_clock.now, wall_clock.now))
        clock.now += 1
        assert names(ring, "a1", "b1", "c") == ["alice", "bob", None]
    path.write_text("# ours\nbob b1\ncarol c1\n")
    os.utime(path, (101.0, 101.0))
    for clock.now, wall_clock.now, expected in ((10.0, 101.9, "alice"), (11.0, 102.0, None)):
        assert names(ring, "a1") == [expected]
    assert names(ring, "b1", "c1") == ["bob", "carol"]
    assert "stay as they were" not in caplog.text


def test_an_emptied_file_takes_no_key_away_but_a_comment_alone_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    path = write(tmp_path / "keys", "alice a1")
    ring = KeyRing(path=path, clock=clock)
    write(path, "")
    for clock.now in (1.0, 2.0, 3.0):
        assert names(ring, "a1") == ["alice"]
    assert caplog.text.count("is empty, as while it is written") == 1
    write(path, "# nobody\n")
    clock.now = 4.0
    assert names(ring, "a1") == [None]
    assert not ring.is_open


def test_an_empty_file_closes_the_server(tmp_path: Path) -> None:
    ring = KeyRing(path=write(tmp_path / "keys", ""))
    assert not ring.is_open
    assert names(ring, "", "x") == [None, None]


def test_a_file_that_others_may_read_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    KeyRing(path=write(tmp_path / "keys", "a 1", mode=0o640))
    assert "may be read by other users" in caplog.text


def test_a_file_that_cannot_be_used_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--api-key-file .*: cannot be read: No such file"):
        KeyRing(path=tmp_path / "missing")
    fixed = parse_keys("alice:x", option="api_key")
    with pytest.raises(UsageError, match=r"--api-key .* and --api-key-file .*: 'alice' names two keys"):
        KeyRing(fixed, write(tmp_path / "keys", "alice a1"))
    with pytest.raises(UsageError, match=r"--api-key .* and --api-key-file .*: .*'bob' are the same key"):
        KeyRing(fixed, write(tmp_path / "keys", "bob x admin"))


def test_an_ordinary_key_that_is_an_admin_key_too_is_refused() -> None:
    keys = [*parse_keys("s3cret", option="api_key"), *parse_keys("s3cret", option="admin_api_key")]
    with pytest.raises(UsageError, match=r"--api-key .* and --admin-api-key ") as caught:
        KeyRing(keys)
    assert "s3cret" not in caught.value.message
