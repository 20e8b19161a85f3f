"""One of a kind, or several, in a sentence."""

from __future__ import annotations

import pytest

from triolet.cluster.wording import is_or_are, numbered


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([], "no rank"),
        ([1], "rank 1"),
        ([1, 2], "ranks 1, 2"),
        ([1, 3, 4], "ranks 1, 3, 4"),
        (range(4), "ranks 0 to 3"),
    ],
)
def test_numbers_are_told_as_one_would(numbers: list[int], said: str) -> None:
    assert numbered("rank", numbers) == said


def test_the_verb_goes_with_them() -> None:
    assert (is_or_are([3]), is_or_are([3, 4])) == ("is", "are")
