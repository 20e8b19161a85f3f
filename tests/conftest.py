"""Fixtures for all tests."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tests.fakes import write_byte_model
from tests.leaks.census import child_processes

from triolet.openmp import wait_without_spinning

# The same examples each time, and no deadline: the machine may be busy.
settings.register_profile("triolet", derandomize=True, deadline=None)
settings.load_profile("triolet")

CHAT_TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def pytest_configure() -> None:
    """Share the cores out among parallel test runs: engines take all they may, and would wait for each other.

    Nothing has imported torch yet, nor Triton, which reads at its import whether it interprets kernels.
    """
    wait_without_spinning(os.environ)
    os.environ.setdefault("TRITON_INTERPRET", "1")
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})


def pytest_collection_finish() -> None:
    """Thousands of tests stay to the end: no search for garbage is to stop everything for looking at them."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Random tensors are the same each time, whatever ran before."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Every asynchronous test runs on both event loops."""
    return str(request.param)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Every test ends the threads and processes that it began."""
    before = _threads(), child_processes()
    yield
    assert _threads() <= before[0], "threads of the package"
    assert child_processes() <= before[1], "child processes"


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("triolet-")}


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a tokeniser of bytes and a chat template; for engines with a fake runner."""
    return write_byte_model(tmp_path_factory.mktemp("byte-model") / "bytes", chat_template=CHAT_TEMPLATE)


@pytest.fixture(scope="session")
def byte_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a real model of random weights, whose tokens are bytes."""
    from tests.byte_llama import write_byte_llama

    return write_byte_llama(tmp_path_factory.mktemp("byte-llama") / "bytes", chat_template=CHAT_TEMPLATE)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's GGUF file, fetched once."""
    from triolet.models.source import resolve_model

    return resolve_model("smollm2-135m-instruct").path
