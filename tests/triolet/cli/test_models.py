from __future__ import annotations

from pathlib import Path

import pytest

from triolet.cli import main
from triolet.models.fetch import BUILTIN_MODELS


def test_models_are_listed_with_their_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--cache-dir", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "smollm2-135m-instruct (default)" in text
    assert text.count("not fetched yet") == len(BUILTIN_MODELS)
    assert str(tmp_path / "smollm2-135m-instruct") in text


def test_a_fetched_model_is_told_by_its_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = next(iter(BUILTIN_MODELS.values()))
    path = tmp_path / model.name / model.file_name
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(model.num_bytes)
    main(["models", "--cache-dir", str(tmp_path)])
    assert "on this machine" in capsys.readouterr().out
