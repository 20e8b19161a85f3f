"""The reference rotation and cache write against complex arithmetic in float64."""

from __future__ import annotations

import pytest
import torch
from tests.kernels import exact
from tests.kernels.batches import make_batch
from tests.kernels.tolerance import DTYPES, assert_close
from torch import Tensor

from triolet_kernels.reference import ReferenceOps

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 4, 2, 8, 8


def expected_heads(heads: Tensor, norm: Tensor | None, positions: Tensor, cos_sin: Tensor) -> Tensor:
    if norm is not None:
        heads = exact.rms_norm(heads, norm, 1e-6)
    turned = [
        [exact.rotate(head, int(position), cos_sin) for head in token]
        for token, position in zip(heads, positions, strict=True)
    ]
    return torch.stack([torch.stack(token) for token in turned])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_norms", [False, True])
def test_rotates_and_keeps_keys_and_values(dtype: torch.dtype, has_norms: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    batch = make_batch([(3, 9), (0, 4), (16, 17)], BLOCK_SIZE)
    angles = torch.rand(32, HEAD_DIM // 2, generator=generator) * 6
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)
    qkv = torch.randn(len(batch.positions), (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM, generator=generator)
    qkv = qkv.to(dtype)
    q_norm, k_norm = (torch.rand(2, HEAD_DIM, generator=generator) + 0.5) if has_norms else (None, None)
    caches = torch.full((2, 9, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM), torch.nan, dtype=dtype)

    query = ReferenceOps().rotary_and_cache(
        qkv, batch, cos_sin, caches[0], caches[1], num_heads=NUM_HEADS, q_norm=q_norm, k_norm=k_norm
    )

    heads = qkv.view(len(qkv), -1, HEAD_DIM)
    places = (batch.cache_slots // BLOCK_SIZE, slice(None), batch.cache_slots % BLOCK_SIZE)
    assert_close(query, expected_heads(heads[:, :NUM_HEADS], q_norm, batch.positions, cos_sin))
    keys = expected_heads(heads[:, NUM_HEADS:-NUM_KV_HEADS], k_norm, batch.positions, cos_sin)
    assert_close(caches[0][places], keys)
    assert torch.equal(caches[1][places], heads[:, -NUM_KV_HEADS:])
    assert int(torch.isfinite(caches).sum()) == 2 * len(qkv) * NUM_KV_HEADS * HEAD_DIM
