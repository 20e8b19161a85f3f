"""The compiled draws against the exact distribution, the reference and a full sort."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.kernels.draws import FILTERS, assert_fits, exact_probabilities, invert, many_uniforms
from torch import Tensor

from triolet_kernels.cpu import CpuOps
from triolet_kernels.ops import DrawnTokens, DrawSettings
from triolet_kernels.reference import ReferenceOps

ALL_FILTERS: list[dict[str, Any]] = [{}, *FILTERS]


def make_logits(num_rows: int, size: int, scale: float = 2.0, seed: int = 0) -> Tensor:
    return scale * torch.randn(num_rows, size, generator=torch.Generator().manual_seed(seed))


def make_settings(
    uniforms: list[float],
    temperature: float = 0.9,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> DrawSettings:
    ones = np.ones(len(uniforms))
    return DrawSettings(
        temperatures=temperature * ones,
        uniforms=np.array(uniforms),
        top_k=np.full(len(uniforms), top_k),
        top_p=top_p * ones,
        min_p=min_p * ones,
    )


def assert_same(actual: DrawnTokens, expected: DrawnTokens) -> None:
    for name in ("token_ids", "highest", "num_kept"):
        np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name))


@pytest.mark.parametrize("filters", ALL_FILTERS, ids=str)
@pytest.mark.parametrize("size", [1, 7, 300, 1000])
def test_draws_have_the_exact_distribution(ops: CpuOps, filters: dict[str, Any], size: int) -> None:
    numbers = many_uniforms(6_000)
    logits = make_logits(1, size, 1.5)
    drawn = ops.draw(logits.expand(len(numbers), size), make_settings(numbers, **filters))
    probabilities = exact_probabilities(logits[0].numpy(), 0.9, **filters)
    assert_fits(drawn.token_ids.tolist(), probabilities)
    expected_kept = len(probabilities) if filters else size
    assert set(drawn.num_kept.tolist()) == {expected_kept}


@pytest.mark.parametrize("filters", ALL_FILTERS, ids=str)
@pytest.mark.parametrize(("size", "scale"), [(5000, 0.01), (5000, 1.0), (5000, 8.0), (20_011, 2.5)])
def test_draws_are_those_of_the_oracle(ops: CpuOps, filters: dict[str, Any], size: int, scale: float) -> None:
    logits = make_logits(6, size, scale)
    numbers = many_uniforms(6)
    drawn = ops.draw(logits, make_settings(numbers, 1.2, **filters))
    for row, number, token_id in zip(logits.numpy(), numbers, drawn.token_ids.tolist(), strict=True):
        probabilities = exact_probabilities(row, 1.2, **filters)
        order = probabilities if filters else dict(sorted(probabilities.items()))
        expected = [invert(order, near) for near in (number - 1e-5, number, number + 1e-5)]
        assert token_id in expected


@pytest.mark.parametrize("filters", ALL_FILTERS, ids=str)
@pytest.mark.parametrize("kind", ["equal", "ties", "few", "one", "clustered"])
def test_awkward_rows_give_what_the_reference_gives(ops: CpuOps, filters: dict[str, Any], kind: str) -> None:
    logits = make_logits(40, 3001)
    if kind == "equal":
        logits[:] = 0.25
    elif kind == "ties":
        logits = logits.round()
    elif kind == "few":
        logits[:, 3:] = -torch.inf
    elif kind == "one":
        logits[:] = -torch.inf
        logits[:, 2999] = -3.0
    else:
        logits[:, 1000:1100] += 20
    settings = make_settings(many_uniforms(40), **filters)
    actual, expected = ops.draw(logits, settings), ReferenceOps().draw(logits, settings)
    np.testing.assert_array_equal(actual.token_ids, expected.token_ids)
    assert ((logits[torch.arange(40), torch.from_numpy(actual.token_ids)]) > -torch.inf).all()


def test_greedy_rows_and_bad_rows(ops: CpuOps) -> None:
    logits = make_logits(6, 517)
    logits[1, 400], logits[2, 3], logits[3] = torch.nan, torch.inf, -torch.inf
    logits[4, [8, 300]] = 50.0
    logits[5, [9, 10]] = torch.tensor([-0.0, 0.0])
    logits[5] = -logits[5].abs()
    for temperature in (0.0, 1.0):
        drawn = ops.draw(logits, make_settings([0.5] * 6, temperature))
        np.testing.assert_array_equal(np.isfinite(drawn.highest), [True, False, False, False, True, True])
        assert np.isnan(drawn.highest[1])
        assert drawn.highest[3] == -np.inf
    assert_same(ops.draw(logits[4:], make_settings([0.5] * 2, 0.0)),
                ReferenceOps().draw(logits[4:], make_settings([0.5] * 2, 0.0)))  # fmt: skip


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2.0**-53])
@pytest.mark.parametrize("filters", ALL_FILTERS, ids=str)
def test_tokens_without_probability_are_never_drawn(
    ops: CpuOps, filters: dict[str, Any], uniform: float
) -> None:
    logits = torch.full((1, 1000), -torch.inf)
    logits[0, [300, 301]] = torch.tensor([5.0, 4.0])
    assert ops.draw(logits, make_settings([uniform], **filters)).token_ids[0] in (300, 301)
    far_apart = torch.tensor([[-3e38, 3e38, 0.0]])
    assert ops.draw(far_apart, make_settings([uniform], 0.5, **filters)).token_ids[0] == 1


@pytest.mark.parametrize("temperature", [1e-3, 1e-40, 5e-324])
@pytest.mark.parametrize("filters", ALL_FILTERS, ids=str)
def test_cold_rows_give_the_most_likely_token(
    ops: CpuOps, filters: dict[str, Any], temperature: float
) -> None:
    logits = make_logits(3, 1000, 3.0)
    drawn = ops.draw(logits, make_settings([0.0, 0.5, 1 - 2.0**-53], temperature, **filters))
    assert drawn.token_ids.tolist() == logits.argmax(dim=-1).tolist()


def test_a_row_gives_the_same_in_any_company(ops: CpuOps) -> None:
    logits = make_logits(48, 4099)
    before = logits.clone()
    rows: list[dict[str, Any]] = [ALL_FILTERS[index % len(ALL_FILTERS)] for index in range(48)]
    numbers = many_uniforms(48)
    parts = [make_settings([number], **filters) for number, filters in zip(numbers, rows, strict=True)]

    def joined(indices: NDArray[np.int64]) -> DrawSettings:
        names = ("temperatures", "uniforms", "top_k", "top_p", "min_p")
        chosen = [parts[index] for index in indices]
        return DrawSettings(**{name: np.concatenate([getattr(p, name) for p in chosen]) for name in names})

    together = ops.draw(logits, joined(np.arange(48)))
    assert torch.equal(logits, before)
    for indices in (np.array([5]), np.arange(7, 31)[::-1].copy(), np.arange(48)[::3].copy()):
        alone = ops.draw(logits[torch.from_numpy(indices)], joined(indices))
        assert_same(alone, DrawnTokens(together.token_ids[indices], together.highest[indices],
                                       together.num_kept[indices]))  # fmt: skip


def packed(is_allowed: Tensor) -> NDArray[np.int32]:
    """One bit a token, in whole words; bits past the end are set, to be looked past."""
    num_rows, size = is_allowed.shape
    bits = np.ones((num_rows, -(-size // 32) * 32), dtype=np.uint8)
    bits[:, :size] = is_allowed.numpy()
    return np.packbits(bits, axis=1, bitorder="little").view(np.int32)


@pytest.mark.parametrize("filters", [{}, {"top_k": 5}, {"top_p": 0.8, "min_p": 0.05}], ids=str)
@pytest.mark.parametrize("size", [1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 47, 64, 1000, 4099])
def test_masked_draws_are_draws_from_what_is_allowed(ops: CpuOps, filters: dict[str, Any], size: int) -> None:
    logits, rows = make_logits(9, size), np.array([7, 0, 3, 8, 2])
    is_allowed = torch.rand(5, size, generator=torch.Generator().manual_seed(size)) < 0.3
    is_allowed[1], is_allowed[2] = True, False
    is_allowed[3], is_allowed[4] = False, False
    is_allowed[3, -1] = is_allowed[4, 0] = True
    expected_logits = logits.clone()
    expected_logits[rows] = logits[rows].masked_fill(~is_allowed, -torch.inf)
    for_reference, settings = logits.clone(), make_settings(many_uniforms(5), **filters)
    drawn = ops.draw_masked(logits, settings, rows, packed(is_allowed))
    assert torch.equal(logits, expected_logits)
    assert_same(drawn, ops.draw(expected_logits[rows], settings))
    expected = ReferenceOps().draw_masked(for_reference, settings, rows, packed(is_allowed))
    assert torch.equal(for_reference, expected_logits)
    has_token = np.isfinite(expected.highest)
    np.testing.assert_array_equal(drawn.highest, expected.highest)
    np.testing.assert_array_equal(drawn.token_ids[has_token], expected.token_ids[has_token])
    assert drawn.highest[2] == -np.inf


def test_a_mask_does_not_hide_what_is_not_finite(ops: CpuOps) -> None:
    logits = make_logits(4, 70)
    logits[0, 5], logits[1, 69], logits[2, 4], logits[3, 5] = torch.nan, torch.inf, torch.nan, -torch.inf
    is_allowed = torch.ones(4, 70, dtype=torch.bool)
    is_allowed[:, [5, 69]] = False
    for each in (ops, ReferenceOps()):
        drawn = each.draw_masked(logits.clone(), make_settings([0.5] * 4), np.arange(4), packed(is_allowed))
        assert np.isfinite(drawn.highest).tolist() == [False, False, False, True]


@pytest.mark.parametrize("kind", ["any", "ties", "few", "equal"])
@pytest.mark.parametrize("size", [1, 7, 64, 1000, 49_152])
def test_tokens_are_ranked_as_in_the_reference(ops: CpuOps, size: int, kind: str) -> None:
    logits, rows = make_logits(5, size), np.array([4, 0, 3])
    if kind == "ties":
        logits = logits.round()
    elif kind == "few":
        logits[:, : size // 2] = -torch.inf
    elif kind == "equal":
        logits[:] = -3.5
    settings = make_settings([0.0] * 3, 0.7, top_p=0.9)
    settings.top_k[1] = 5
    actual = ops.rank(logits, settings, rows, 64)
    expected = ReferenceOps().rank(logits, settings, rows, 64)
    np.testing.assert_array_equal(actual.token_ids, expected.token_ids)
    np.testing.assert_array_equal(actual.highest, expected.highest)
    np.testing.assert_allclose(actual.weights, expected.weights, rtol=2e-5)
    np.testing.assert_allclose(actual.totals, expected.totals, rtol=2e-5)
    assert (actual.totals == 0).tolist() == [False, True, False]
    found = logits.numpy()[rows]
    assert ((found > -np.inf).sum(axis=1).clip(max=64) == (actual.token_ids >= 0).sum(axis=1)).all()


def test_rows_that_are_not_finite_are_not_ranked(ops: CpuOps) -> None:
    logits = make_logits(4, 300)
    logits[0, 299], logits[1, 0], logits[2] = torch.nan, torch.inf, -torch.inf
    for each in (ops, ReferenceOps()):
        ranked = each.rank(logits, make_settings([0.0] * 4), np.arange(4), 8)
        assert np.isfinite(ranked.highest).tolist() == [False, False, False, True]
        assert (ranked.token_ids[:3] == -1).all()
        assert not ranked.weights[:3].any()


def test_some_rows_are_drawn_as_all_are(ops: CpuOps) -> None:
    logits, rows = make_logits(6, 1000), np.array([5, 0, 2])
    settings = make_settings(many_uniforms(3), top_p=0.8)
    for each in (ops, ReferenceOps()):
        assert_same(each.draw(logits, settings, rows), each.draw(logits[rows], settings))


def test_a_masked_row_gives_the_same_in_any_company(ops: CpuOps) -> None:
    logits, numbers = make_logits(40, 4099), many_uniforms(40)
    masks = packed(torch.rand(40, 4099, generator=torch.Generator().manual_seed(1)) < 0.1)
    together = ops.draw_masked(logits.clone(), make_settings(numbers), np.arange(40), masks)
    for index in (0, 17, 39):
        alone = ops.draw_masked(
            logits.clone(),
            make_settings(numbers[index : index + 1]),
            np.array([index]),
            masks[index : index + 1],
        )
        assert_same(alone, DrawnTokens(*(getattr(together, name)[index : index + 1]
                                         for name in ("token_ids", "highest", "num_kept"))))  # fmt: skip


@pytest.mark.parametrize("size", [1, 5, 1000, 49_152])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_others_are_drawn_from_what_is_left(ops: CpuOps, temperature: float, size: int) -> None:
    logits, rows = make_logits(6, size), np.array([4, 1, 0])
    before, numbers = logits.clone(), np.array(many_uniforms(24)).reshape(3, 8)
    taken = logits.numpy()[rows].argmax(axis=1)
    others = ops.draw_others(logits, rows, taken, np.full(3, temperature), numbers)
    assert torch.equal(logits, before)
    for index, row in enumerate(rows):
        left = logits[row].clone()
        left[taken[index]] = -torch.inf
        for number, token_id in zip(numbers[index], others[index].tolist(), strict=True):
            if not torch.isfinite(left).any():
                assert token_id == -1
                continue
            settings = make_settings([number], temperature)
            assert token_id == ops.draw(left[None], settings).token_ids[0]
            left[token_id] = -torch.inf
    expected = ReferenceOps().draw_others(logits, rows, taken, np.full(3, temperature), numbers)
    assert (others == expected).mean() > 0.9


def test_others_end_where_nothing_weighs_anything(ops: CpuOps) -> None:
    logits = torch.full((2, 100), -torch.inf)
    logits[:, 7], logits[:, 50], logits[:, 60] = 3.0, 2.0, -500.0
    numbers = np.full((2, 3), 0.5)
    rows, taken, temperatures = np.array([0, 1]), np.array([7, 7]), np.array([0.0, 1.0])
    for each in (ops, ReferenceOps()):
        others = each.draw_others(logits, rows, taken, temperatures, numbers)
        assert others.tolist() == [[50, 60, -1], [50, -1, -1]]
