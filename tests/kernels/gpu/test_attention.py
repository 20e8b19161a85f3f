"""Paged attention on a GPU: against the reference, and bit-equality whatever the company."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.kernels.batches import Shape, Spans, make_problem
from tests.kernels.gpu.interpreted import interpreted_device
from tests.kernels.gpu.paged import Paged, make_paged, paged
from tests.kernels.tolerance import assert_close
from torch import Tensor

from triolet_kernels.gpu.attention import AttentionKernels
from triolet_kernels.reference import attention as reference

MIXED = [(0, 7), (69, 70), (0, 40), (299, 300), (60, 63)]
DECODING = [(0, 1), (69, 70), (600, 601)]
SHAPE = Shape(num_heads=6, num_kv_heads=2, head_dim=64, block_size=16)

KERNELS = AttentionKernels(interpreted_device())
INVARIANT = AttentionKernels(interpreted_device(), is_batch_invariant=True)


def check(problem: Paged, kernels: AttentionKernels = KERNELS, **options: float | None) -> None:
    expected = replace(problem, query=problem.query.float()).attend(reference.paged_attention, **options)
    assert_close(problem.attend(kernels.paged_attention, **options), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("spans", [MIXED, DECODING], ids=["mixed", "decoding"])
def test_every_number_format(spans: Spans, dtype: torch.dtype) -> None:
    check(paged(replace(SHAPE, dtype=dtype), spans))


@pytest.mark.parametrize("cache_dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("spans", [MIXED, DECODING], ids=["mixed", "decoding"])
def test_caches_of_8_bits(spans: Spans, cache_dtype: torch.dtype) -> None:
    check(paged(replace(SHAPE, dtype=torch.bfloat16), spans, cache_dtype=cache_dtype))


@pytest.mark.parametrize(
    "shape",
    [
        Shape(num_heads=2, num_kv_heads=2, head_dim=16, block_size=16),
        Shape(num_heads=7, num_kv_heads=1, head_dim=80, block_size=32),
        Shape(num_heads=20, num_kv_heads=1, head_dim=24, block_size=8),
        Shape(num_heads=2, num_kv_heads=1, head_dim=256, block_size=128),
        Shape(num_heads=4, num_kv_heads=2, head_dim=6, block_size=8),
    ],
    ids=lambda shape: f"{shape.num_heads}x{shape.head_dim}",
)
def test_awkward_shapes(shape: Shape) -> None:
    check(paged(shape, [(0, 9), (139, 140)]))


def test_what_the_table_lacks_is_the_references_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    kernels = AttentionKernels(interpreted_device())
    problem = paged(Shape(num_heads=2, num_kv_heads=1, head_dim=520, block_size=16), [(0, 9)])
    for _ in range(2):
        check(problem, kernels)
    assert caplog.messages == ["no attention kernel for head 1024, 32 bits: torch computes it, slowly"]


@pytest.mark.parametrize("window", [1, 33, 128])
@pytest.mark.parametrize("spans", [[(130, 201), (0, 5)], [(299, 300), (30, 31)]], ids=["prefill", "decoding"])
def test_windows(spans: Spans, window: int) -> None:
    check(paged(SHAPE, spans, window=window), window=window)


@pytest.mark.parametrize("spans", [[(0, 20)], [(299, 300)]], ids=["prefill", "decoding"])
def test_a_soft_cap(spans: Spans) -> None:
    check(paged(SHAPE, spans), soft_cap=1.5)


@pytest.mark.parametrize("spans", [[(0, 80)], [(149, 150)]], ids=["prefill", "decoding"])
def test_large_scores_and_one_dominant_key(spans: Spans) -> None:
    problem = make_problem(SHAPE, [150])
    problem.keys[0][77] *= 100
    check(make_paged(problem, spans), scale=20.0)


@pytest.mark.parametrize("kernels", [KERNELS, INVARIANT], ids=["split", "invariant"])
@pytest.mark.parametrize("window", [None, 50])
def test_bits_do_not_depend_on_company(kernels: AttentionKernels, window: int | None) -> None:
    shape = replace(SHAPE, dtype=torch.bfloat16)
    problem = make_problem(shape, [end for _, end in MIXED])
    together = make_paged(problem, MIXED, window=window).attend(kernels.paged_attention, window=window)
    start = 0
    for index, span in enumerate(MIXED):
        one = make_paged(problem.pick([index]), [span], window=window)
        alone = one.attend(kernels.paged_attention, window=window)
        assert torch.equal(together[start : start + len(alone)], alone)
        start += len(alone)


@pytest.mark.parametrize("window", [None, 50])
def test_invariant_bits_do_not_depend_on_chunks(window: int | None) -> None:
    problem = make_problem(replace(SHAPE, dtype=torch.bfloat16), [140])

    def run(start: int, end: int) -> Tensor:
        chunk = make_paged(problem.pick([0]), [(start, end)], window=window)
        return chunk.attend(INVARIANT.paged_attention, window=window)

    whole = run(0, 140)
    for start, end in ((0, 1), (139, 140), (63, 65), (64, 128), (100, 140)):
        assert torch.equal(run(start, end), whole[start:end])


def test_bits_do_not_depend_on_the_number_of_programs() -> None:
    problem = paged(SHAPE, DECODING)
    for num_multiprocessors in (1, 1000):
        device = replace(interpreted_device(), num_multiprocessors=num_multiprocessors)
        actual = problem.attend(AttentionKernels(device).paged_attention)
        assert torch.equal(actual, problem.attend(KERNELS.paged_attention))


def test_a_padded_batch_gives_the_same_bits() -> None:
    """As in a captured graph: more sequences, without tokens, and the longest context there may be."""
    problem = paged(SHAPE, DECODING)
    batch = problem.batch
    more = 2
    padded = replace(
        batch,
        block_tables=torch.cat([batch.block_tables, torch.full_like(batch.block_tables[:more], 2**31 - 1)]),
        query_starts=torch.cat([batch.query_starts, batch.query_starts[-1:].expand(more)]),
        sequence_lengths=torch.cat([batch.sequence_lengths, torch.zeros(more, dtype=torch.int32)]),
        max_sequence_length=1 << 17,
    )
    query = torch.cat([problem.query, torch.full_like(problem.query[:more], math.nan)])
    actual = replace(problem, query=query, batch=padded).attend(KERNELS.paged_attention)
    assert torch.equal(actual[:-more], problem.attend(KERNELS.paged_attention))


@pytest.mark.parametrize("part", ["queries", "keys", "values"])
def test_a_nan_shows_in_all_that_sees_it_and_in_no_other_sequence(part: str) -> None:
    problem, spans = make_problem(SHAPE, [140, 70]), [(0, 140), (69, 70)]
    expected = make_paged(problem, spans).attend(KERNELS.paged_attention).view(141, 6, 64)
    getattr(problem, part)[0][100, 0, 3] = math.nan
    actual = make_paged(problem, spans).attend(KERNELS.paged_attention).view(141, 6, 64)
    # What sees a key: the heads of its group, from the token on; a tile of values is multiplied as a whole.
    seen = actual[100:101, :1] if part == "queries" else actual[100:140, :3]
    assert torch.isnan(seen).any(-1).all()
    before = 64 if part == "values" else 100
    assert torch.equal(actual[:before], expected[:before])
    assert torch.equal(actual[140:], expected[140:])
    assert torch.equal(actual[:, 3:], expected[:, 3:])
