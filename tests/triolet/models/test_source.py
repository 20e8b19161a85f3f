"""What a model may be called, and in which order the ways are tried."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from triolet.errors import ModelFileError, UsageError
from triolet.models import source
from triolet.models.fetch import BuiltinModel
from triolet.models.fetch_hub import HubName
from triolet.models.source import local_files, resolve_model


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").touch()
    return folder


def test_a_gguf_file(llama_gguf: Path) -> None:
    files = resolve_model(str(llama_gguf))
    assert files.kind == "gguf"
    assert (files.path, files.weights) == (llama_gguf, (llama_gguf,))


def test_a_hugging_face_directory(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = resolve_model(str(directory))
    assert (files.kind, files.path) == ("huggingface", directory)
    assert files.weights == (directory / "model.safetensors",)
    monkeypatch.chdir(directory)
    assert resolve_model(".").kind == "huggingface"


def test_a_home_relative_path(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(directory.parent))
    assert resolve_model("~/my-model").path == directory


def test_what_is_at_a_path_but_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.bin").touch()
    os.mkfifo(tmp_path / "pipe.gguf")
    for name in ("model.bin", "pipe.gguf"):
        with pytest.raises(ModelFileError, match=r"neither a .gguf file nor a directory"):
            local_files(tmp_path / name)


def test_a_directory_of_gguf_files_suggests_one(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    with pytest.raises(ModelFileError, match=r"no config\.json.*did you mean .*a\.gguf"):
        resolve_model(str(tmp_path))


def test_a_built_in_name_is_fetched(
    tmp_path: Path, llama_gguf: Path, fake_model: BuiltinModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def fetch(model: BuiltinModel, cache_dir: Path, progress: object) -> Path:
        calls.append((model, cache_dir, progress))
        return llama_gguf

    monkeypatch.setattr(source, "fetch_builtin", fetch)
    monkeypatch.setattr(source, "BUILTIN_MODELS", {"fake-model": fake_model})
    files = resolve_model("Fake-Model", cache_dir=tmp_path, progress=calls.append)
    assert files.path == llama_gguf
    assert calls == [(fake_model, tmp_path, calls.append)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("owner/repo", HubName("owner/repo", None)),
        ("owner/repo-GGUF/repo.Q4_K_M.gguf", HubName("owner/repo-GGUF", "repo.Q4_K_M.gguf")),
        ("owner/repo/sub/x.gguf", HubName("owner/repo", "sub/x.gguf")),
    ],
)
def test_a_hub_id_is_fetched(
    name: str, expected: HubName, llama_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def fetch(hub_name: HubName, *, revision: str | None, cache_dir: Path | None) -> Path:
        calls.append((hub_name, revision, cache_dir))
        return llama_gguf

    monkeypatch.setattr(source, "fetch_from_hub", fetch)
    files = resolve_model(name, revision="v1")
    assert files.path == llama_gguf
    assert calls == [(expected, "v1", None)]


def test_a_path_that_exists_comes_before_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "repo").mkdir(parents=True)
    with pytest.raises(ModelFileError, match=r"no config.json"):
        resolve_model("owner/repo")


@pytest.mark.parametrize(
    "name",
    [
        "", "nonsense", "/no/such/file.gguf", "folder/x.gguf", "a/../b", "../a/b", "x" * 5000, "a\0/b",
        "~nobody-here/x", "a/b/c",
    ],
)  # fmt: skip
def test_a_name_that_names_nothing_is_refused_with_the_ways_to_name_one(name: str) -> None:
    with pytest.raises(UsageError, match=r"built-in name \(smollm2-135m-instruct\), .* hub") as error:
        resolve_model(name)
    assert error.value.param == "model"
    assert len(error.value.message) < 1000


def test_a_path_is_said_not_to_exist() -> None:
    for name in ("/nowhere/model.gguf", "./nowhere", "nowhere.gguf"):
        with pytest.raises(UsageError, match=f"model '{name}' is no file or directory that exists"):
            resolve_model(name)


def test_close_matches_are_suggested(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean smollm2-135m-instruct"):
        resolve_model("smollm-135m")
    (tmp_path / "gemma-3.gguf").touch()
    with pytest.raises(UsageError, match=r"did you mean .*gemma-3\.gguf"):
        resolve_model(str(tmp_path / "gemma3.gguf"))


def test_a_revision_is_for_the_hub_only(llama_gguf: Path) -> None:
    with pytest.raises(UsageError, match="models of the hub only") as error:
        resolve_model(str(llama_gguf), revision="main")
    assert error.value.param == "revision"


def test_naming_a_model_loads_neither_torch_nor_the_hub_client() -> None:
    code = "import sys, triolet.models.source as s; print({'torch', 'huggingface_hub'} & set(sys.modules))"
    paths = os.pathsep.join(path for path in sys.path if path)
    result = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, check=True
    )
    assert result.stdout.strip() == b"set()"
