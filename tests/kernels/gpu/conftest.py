"""Triton kernels under its interpreter, on tensors of the CPU.

``tests/conftest.py`` has asked for the interpreter before anything imported Triton.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np
import pytest
import torch

collect_ignore_glob = [] if find_spec("triton") else ["test_*"]  # it exists for Linux alone


@pytest.fixture(autouse=True)
def _poisoned_outputs() -> Iterator[None]:
    """What ``torch.empty`` gives is full of NaN, or of the largest integer."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def _silent_overflow() -> Iterator[None]:
    """As on a GPU: the interpreter computes with NumPy, which warns."""
    with np.errstate(over="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice", RuntimeWarning)
        yield


@pytest.fixture(autouse=True)
def _repaired_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    # Not before: this file is read before the interpreter is asked for.
    from tests.kernels.gpu.interpreter_repairs import repair_interpreter

    repair_interpreter(monkeypatch)
