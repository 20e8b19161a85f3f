"""Finding the compiled kernels, choosing among their variants, and doing without them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from tests.kernels.batches import Shape, make_problem, run_history
from tests.kernels.cpu.variants import build_if_missing, runs

from build_cpu import source_digest
from triolet_kernels.cpu import loader
from triolet_kernels.cpu.loader import LIBRARY_PATH, NativeError, NativeLibrary
from triolet_kernels.ops import select_ops
from triolet_kernels.reference import ReferenceOps


@pytest.fixture(autouse=True)
def _library() -> None:
    build_if_missing()


def test_takes_the_best_variant_this_cpu_runs() -> None:
    best = next(isa for isa in loader.INSTRUCTION_SETS if runs(isa))
    assert NativeLibrary.open({}).isa == best


def test_a_lower_variant_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIOLET_CPU_ISA", "portable")
    assert select_ops(torch.device("cpu")).name == "cpu-portable"


def test_an_unknown_variant_is_refused_with_the_ones_there_are() -> None:
    with pytest.raises(ValueError, match=r"TRIOLET_CPU_ISA=sse9: must be one of .*portable"):
        NativeLibrary.open({"TRIOLET_CPU_ISA": "sse9"})


def test_says_that_the_library_was_not_built(tmp_path: Path) -> None:
    with pytest.raises(NativeError, match="were not built"):
        NativeLibrary.open({}, path=tmp_path / "none.so")


def test_says_that_the_library_is_of_other_sources(tmp_path: Path) -> None:
    copy = tmp_path / "libtriolet_cpu.so"
    digest = source_digest(LIBRARY_PATH.parent).encode()
    content = LIBRARY_PATH.read_bytes()
    assert content.count(digest) == 1
    copy.write_bytes(content.replace(digest, digest[::-1]))
    with pytest.raises(NativeError, match=r"built from other sources; run: python kernels/build_cpu\.py"):
        NativeLibrary.open({}, path=copy)


def test_without_the_library_one_warning_and_the_same_results(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loader, "LIBRARY_PATH", tmp_path / "none.so")
    with caplog.at_level(logging.WARNING, "triolet"):
        ops = select_ops(torch.device("cpu"))
    assert ops.name == "cpu-torch"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "kernels/build_cpu.py" in caplog.text

    shape = Shape(num_heads=4, num_kv_heads=2, head_dim=16, block_size=16)
    problem = make_problem(shape, [40])
    expected = run_history(ReferenceOps(), problem, [(0, 40)])
    assert torch.equal(run_history(ops, problem, [(0, 40)]), expected)
    x, weight = torch.randn(3, 64), torch.randn(64)
    assert torch.equal(ops.rms_norm(x, weight, 1e-5), ReferenceOps().rms_norm(x, weight, 1e-5))
    assert torch.equal(ops.silu_mul(x), ReferenceOps().silu_mul(x))
    assert torch.equal(ops.gelu_mul(x), ReferenceOps().gelu_mul(x))
    assert torch.equal(
        ops.add_rms_norm(x, x.clone(), weight, 1e-5), ReferenceOps().add_rms_norm(x, x.clone(), weight, 1e-5)
    )
