from __future__ import annotations

from pathlib import Path

import pytest

from triolet.errors import ModelFileError
from triolet.models.json_file import read_json_object


def test_an_object_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a": [1, "\u00e9"]}', encoding="utf-8")
    assert read_json_object(tmp_path / "config.json") == {"a": [1, "\u00e9"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not valid JSON"),
        (b"{", "is not valid JSON"),
        (b"\xff\xfe{", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "is not valid JSON"),
        (b"[1]", "must hold an object, not list"),
    ],
)
def test_hostile_json_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=message):
        read_json_object(path)


def test_json_that_cannot_be_read_or_is_too_large(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_json_object(tmp_path / "config.json")
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ModelFileError, match="larger than"):
        read_json_object(tmp_path / "huge.json")
