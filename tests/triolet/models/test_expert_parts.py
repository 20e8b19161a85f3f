"""The weights of experts within what files store."""

from __future__ import annotations

import pytest
import torch

from triolet.models.expert_parts import Part, parts_of

LAYER = "model.layers.7"


@pytest.mark.parametrize("ending", ["", ".weight"])
def test_stacked_gates_and_ups_are_taken_apart(ending: str) -> None:
    stored = torch.randn(3, 8, 5)
    parts = parts_of(f"{LAYER}.mlp.experts.gate_up_proj{ending}", (3, 8, 5), 3)
    assert len(parts) == 6
    for expert in range(3):
        for name, rows in (("gate_proj", stored[expert, :4]), ("up_proj", stored[expert, 4:])):
            part = parts[f"{LAYER}.mlp.experts.{expert}.{name}.weight"]
            assert part.shape == (4, 5)
            assert torch.equal(part.of(stored), rows)


@pytest.mark.parametrize("projection", ["gate_proj", "up_proj", "down_proj"])
def test_experts_in_one_tensor(projection: str) -> None:
    stored = torch.randn(3, 6, 5)
    parts = parts_of(f"{LAYER}.mlp.experts.{projection}.weight", (3, 6, 5), 3)
    assert list(parts) == [f"{LAYER}.mlp.experts.{expert}.{projection}.weight" for expert in range(3)]
    assert all(torch.equal(part.of(stored), stored[expert]) for expert, part in enumerate(parts.values()))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("block_sparse_moe.gate", "mlp.gate"),
        ("block_sparse_moe.experts.12.w1", "mlp.experts.12.gate_proj"),
        ("block_sparse_moe.experts.0.w2", "mlp.experts.0.down_proj"),
        ("block_sparse_moe.experts.0.w3", "mlp.experts.0.up_proj"),
        ("mlp.experts.3.up_proj", "mlp.experts.3.up_proj"),
        ("block_sparse_moe.experts.0.w4", "block_sparse_moe.experts.0.w4"),
        ("mlp.gate_proj", "mlp.gate_proj"),
    ],
)
def test_other_names(name: str, expected: str) -> None:
    part = Part((4, 5))
    assert parts_of(f"{LAYER}.{name}.weight", (4, 5), 3) == {f"{LAYER}.{expected}.weight": part}
    stored = torch.randn(4, 5)
    assert torch.equal(part.of(stored), stored)


@pytest.mark.parametrize("shape", [(2**60, 0, 5), (2, 8, 5), (3, 7, 5), (24, 5), (3,)])
def test_other_shapes_are_left_as_they_are(shape: tuple[int, ...]) -> None:
    name = f"{LAYER}.mlp.experts.gate_up_proj"
    assert parts_of(name, shape, 3) == {name: Part(shape)}


def test_the_gate_of_a_shared_expert_may_be_a_vector() -> None:
    name, gate = f"{LAYER}.mlp.shared_expert_gate.weight", torch.randn(5)
    part = parts_of(name, (5,), 3)[name]
    assert part.shape == (1, 5)
    assert torch.equal(part.of(gate), gate[None])
    assert parts_of(name, (1, 5), 3) == {name: Part((1, 5))}
