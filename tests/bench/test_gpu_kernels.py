from __future__ import annotations

import torch
from bench.gpu_kernels import attention_batch, equality, measure_kernels
from bench.gpu_timing import Budget, Figures
from torch import Tensor

from triolet_kernels.reference import ReferenceOps

CPU = torch.device("cpu")


class WrongOps(ReferenceOps):
    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return super().silu_mul(gate_up) * 1.1

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        raise RuntimeError("no such kernel")


def figures_of() -> Figures:
    return Figures(None, Budget(1000.0), {})


def test_what_is_wrong_shows_and_what_is_missing_does_not_end_it() -> None:
    figures = figures_of()
    equality(figures, WrongOps(), CPU, torch.float32, is_tiny=True)
    verdicts = {row["case"]: row["verdict"] for row in figures.rows}
    assert verdicts.pop("silu_mul") == verdicts.pop("gelu_mul") == "below goal"
    assert set(verdicts.values()) == {"ok"}
    assert len(verdicts) > 15


def test_tokens_are_where_the_tables_say() -> None:
    batch = attention_batch([1, 33], [40, 33], CPU)
    assert batch.query_starts.tolist() == [0, 1, 34]
    assert batch.positions.tolist() == [39, *range(33)]
    for sequence, token in ((0, 0), (1, 1), (1, 33)):
        position = int(batch.positions[token])
        block = int(batch.block_tables[sequence, position // 32])
        assert int(batch.cache_slots[token]) == block * 32 + position % 32


def test_kernels_are_measured_beside_ceilings() -> None:
    figures = figures_of()
    measure_kernels(figures, ReferenceOps(), CPU, torch.float32, (1e9, 1e9), is_tiny=True)
    kernels = [row for row in figures.rows if row["section"] == "kernels"]
    assert all(row["share"] > 0 for row in kernels)
    assert any("prefill" in row["case"] for row in kernels)
