"""Which files hold the weights, and which indexes are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from triolet.errors import ModelFileError
from triolet.models.safetensors_index import find_weights

INDEX = "model.safetensors.index.json"


def write_index(folder: Path, weight_map: Any) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def test_one_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    assert find_weights(tmp_path) == (tmp_path / "model.safetensors",)


def test_shards_come_before_one_file_each_once(tmp_path: Path) -> None:
    for name in ("b.safetensors", "a.safetensors", "model.safetensors"):
        (tmp_path / name).touch()
    write_index(tmp_path, {"x": "b.safetensors", "y": "a.safetensors", "z": "b.safetensors"})
    assert [path.name for path in find_weights(tmp_path)] == ["a.safetensors", "b.safetensors"]


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").touch()
    write_index(tmp_path, {"x": "a.safetensors", "y": "b.safetensors"})
    with pytest.raises(
        ModelFileError, match=r"1 of 2 shards .* are missing: b\.safetensors; fetch them again"
    ):
        find_weights(tmp_path)


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "passwd", 7, ""]
)
def test_an_index_reaches_nothing_outside_its_directory(tmp_path: Path, name: Any) -> None:
    write_index(tmp_path, {"x": name})
    with pytest.raises(ModelFileError, match=r"is not the plain name of a .safetensors file"):
        find_weights(tmp_path)


@pytest.mark.parametrize("weight_map", [None, [], {}, "x"])
def test_a_wrong_index_is_refused(tmp_path: Path, weight_map: Any) -> None:
    write_index(tmp_path, weight_map)
    with pytest.raises(ModelFileError, match="weight_map must be an object"):
        find_weights(tmp_path)


def test_no_weights_at_all(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ModelFileError, match="convert them to safetensors"):
        find_weights(tmp_path)
