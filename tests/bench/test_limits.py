from __future__ import annotations

from pathlib import Path

import pytest
import torch
from bench.kernels import Ceilings
from bench.limits import StepWork, most_tokens_per_s, step_work
from tests.triolet.models.model_files import LLAMA_METADATA, llama_tensors, write_gguf

WORK = StepWork(num_bytes=1000, num_weights=400, windows=(None, 16), key_value_bytes=2)
LAYER = 32 * 32 * 2 + 16 * 32 * 2 + 3 * 64 * 32


@pytest.mark.parametrize("is_tied", [False, True])
def test_the_work_of_a_step_is_that_of_its_matrices(is_tied: bool, tmp_path: Path) -> None:
    tensors = llama_tensors()
    output = {} if is_tied else {"output.weight": tensors["token_embd.weight"]}
    path = write_gguf(tmp_path / "m.gguf", metadata=LLAMA_METADATA, tensors={**tensors, **output})
    work = step_work(path, torch.bfloat16)
    assert work == StepWork(2 * (LAYER + 4 * 32), LAYER + 4 * 32, (None,), 2 * 2 * 8 * 2)


def test_a_window_bounds_what_is_read() -> None:
    assert WORK.bytes_read(batch=1, context=10) == 1000 + 2 * 20
    assert WORK.bytes_read(batch=3, context=100) == 1000 + 3 * 2 * 116


def test_the_limit_is_the_nearer_of_two() -> None:
    memory, products = Ceilings(bytes_read=1e4, operations=1e9), Ceilings(bytes_read=1e9, operations=8e3)
    assert most_tokens_per_s(WORK, memory, batch=1, context=0) == pytest.approx(10)
    assert most_tokens_per_s(WORK, memory, batch=4, context=0) == pytest.approx(40)
    assert most_tokens_per_s(WORK, products, batch=4, context=0) == pytest.approx(10)
