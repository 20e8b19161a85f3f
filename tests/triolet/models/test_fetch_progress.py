"""What a fetch says of itself."""

from __future__ import annotations

from triolet.models.fetch_progress import FetchProgress


def test_progress_reads_as_a_sentence() -> None:
    assert str(FetchProgress("downloading", 34_400_000, 92_871_040)) == "downloading the model: 34 of 93 MB"
    assert str(FetchProgress("extracting", 5_000_000, None)) == "extracting the model: 5 MB"
    assert str(FetchProgress("waiting", 0, None)).startswith("waiting for another process")
