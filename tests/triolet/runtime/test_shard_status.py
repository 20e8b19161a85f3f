"""What a shard failed with, as the others hear of it."""

from __future__ import annotations

import pytest
import torch

from triolet.errors import EngineDeadError, EngineError, UsageError, WeightsError
from triolet.runtime.shard_status import decode_status, encode_status, new_status


def test_nothing_wrong_is_nothing() -> None:
    assert decode_status(encode_status(None), 1) is None
    assert decode_status(new_status(), 1) is None


@pytest.mark.parametrize("kind", [UsageError, WeightsError])
def test_what_a_user_can_mend_is_told_as_it_was(kind: type[UsageError]) -> None:
    error = decode_status(encode_status(kind("no room: lower it", param="max_model_len")), 1)
    assert type(error) is kind
    assert str(error) == "no room: lower it"
    assert error.param == "max_model_len"


@pytest.mark.parametrize("error", [MemoryError("no memory"), torch.OutOfMemoryError("no memory")])
def test_no_memory_is_no_memory(error: Exception) -> None:
    heard = decode_status(encode_status(error), 3)
    assert type(heard) is MemoryError
    assert f"shard 3: {type(error).__name__}: no memory" in str(heard)


@pytest.mark.parametrize("error", [ValueError("odd"), EngineDeadError("odd")])
def test_anything_else_is_an_error_of_the_engine(error: Exception) -> None:
    heard = decode_status(encode_status(error), 2)
    assert type(heard) is EngineError
    assert str(heard) == f"tensor parallel shard 2: {type(error).__name__}: odd"


@pytest.mark.parametrize("text", ["x" * 5000, "é" * 5000, "\0" * 5000])
def test_a_long_message_is_cut_off(text: str) -> None:
    heard = decode_status(encode_status(ValueError(text)), 1)
    assert 100 < len(str(heard)) < 2100
