"""The hub: which files are asked for, and what is said when they cannot be had; no network here."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import huggingface_hub
import pytest
from huggingface_hub import errors
from huggingface_hub.utils._paths import filter_repo_objects

from triolet.errors import ModelFetchError
from triolet.models.fetch_hub import HubName, fetch_from_hub

REPOSITORY = HubName("owner/repo", None)
FILE = HubName("owner/repo", "x.gguf")


class Recorder:
    """Stands for a download function of the hub's client: keeps the options, returns a path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls: list[dict[str, Any]] = []

    def __call__(self, **options: Any) -> str:
        self.calls.append(options)
        return str(self.path)


def test_a_repository_is_asked_for_config_tokenizer_and_safetensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    download = Recorder(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert fetch_from_hub(REPOSITORY, revision="v1", cache_dir=tmp_path) == tmp_path
    (options,) = download.calls
    assert (options["repo_id"], options["revision"], options["cache_dir"]) == ("owner/repo", "v1", tmp_path)
    names = ["config.json", "tokenizer.json", "model-00001-of-00002.safetensors", "pytorch_model.bin"]
    names += ["consolidated.safetensors", "model.safetensors.index.json", "chat_template.jinja", "README.md"]
    wanted = filter_repo_objects(names, allow_patterns=options["allow_patterns"])
    assert sorted(wanted) == [
        "chat_template.jinja", "config.json", "model-00001-of-00002.safetensors",
        "model.safetensors.index.json", "tokenizer.json",
    ]  # fmt: skip


def test_one_file_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    download = Recorder(tmp_path / "x.gguf")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert fetch_from_hub(FILE, revision=None, cache_dir=None) == tmp_path / "x.gguf"
    expected = {"repo_id": "owner/repo", "revision": None, "cache_dir": None, "filename": "x.gguf"}
    assert download.calls == [expected]


def http_error(kind: type[errors.HfHubHTTPError]) -> Exception:
    return kind("no", response=Mock(headers={}))


ERRORS = [
    (http_error(errors.RepositoryNotFoundError), "does not exist, or it is private or gated"),
    (http_error(errors.GatedRepoError), "hf auth login"),
    (http_error(errors.RevisionNotFoundError), "there is no such revision"),
    (http_error(errors.RemoteEntryNotFoundError), "there is no file x.gguf in it"),
    (errors.LocalEntryNotFoundError("cannot reach the hub"), "LocalEntryNotFoundError: cannot reach the hub"),
    (ConnectionError("no route"), "ConnectionError: no route"),
    (OSError(28, "No space left on device"), "No space left on device"),
    (errors.HFValidationError("bad id"), "HFValidationError: bad id"),
]


@pytest.mark.parametrize(("error", "message"), ERRORS)
def test_an_error_tells_the_cause_and_the_way_out(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_options: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(ModelFetchError, match=message) as raised:
        fetch_from_hub(FILE, revision="v1", cache_dir=None)
    assert "owner/repo/x.gguf at revision v1 could not be had" in raised.value.message
    assert "hf download owner/repo --local-dir model --include x.gguf" in raised.value.message
    assert raised.value.__cause__ is error


def test_without_network_the_real_client_fails_with_our_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelFetchError, match="hf download owner/repo --local-dir model\n"):
        fetch_from_hub(REPOSITORY, revision=None, cache_dir=tmp_path)
