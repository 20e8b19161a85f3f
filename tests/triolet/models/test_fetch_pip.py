"""Running pip: where it downloads to, and what its failures say. The rest is in ``test_fetch.py``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.triolet.models.model_files import make_wheel

from triolet.models.fetch_pip import DownloadError, download_wheel


def ignore(_num_bytes: int) -> None:
    pass


def test_the_wheel_is_all_that_is_left_beside_the_log(tmp_path: Path, wheels: Path) -> None:
    wheel = make_wheel(wheels)
    folder = tmp_path / "folder"
    download_wheel("fake-model==1.0", folder, on_bytes=ignore)
    assert (folder / wheel.name).read_bytes() == wheel.read_bytes()
    assert sorted(path.name for path in folder.iterdir()) == [wheel.name, "pip.log", "tmp"]
    assert list((folder / "tmp").iterdir()) == []


def test_a_pip_in_the_current_directory_is_not_run(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(wheels)
    (tmp_path / "pip.py").write_text("raise SystemExit('the wrong pip')")
    monkeypatch.chdir(tmp_path)
    download_wheel("fake-model==1.0", tmp_path / "folder", on_bytes=ignore)


@pytest.mark.usefixtures("wheels")
def test_an_error_says_what_pip_said(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"No matching distribution found for fake-model==1.0"):
        download_wheel("fake-model==1.0", tmp_path, on_bytes=ignore)


def test_a_python_that_is_not_there_is_an_os_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(FileNotFoundError):
        download_wheel("fake-model==1.0", tmp_path, on_bytes=ignore)
