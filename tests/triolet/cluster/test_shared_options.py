"""What machines must have in common, and the secret that they share."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from triolet.args import EngineArgs
from triolet.cluster.shared_options import ALIKE, SECRET_VARIABLE, cluster_secret, shared_options
from triolet.errors import UsageError

SECRET = "a secret of many letters"


def secret_file(folder: Path, text: str, mode: int = 0o600) -> EngineArgs:
    path = folder / "secret"
    path.write_text(text)
    path.chmod(mode)
    return EngineArgs(cluster_secret_file=path)


def test_options_are_compared_by_their_names() -> None:
    assert set(ALIKE) <= {field.name for field in dataclasses.fields(EngineArgs)}
    options = shared_options(EngineArgs(data_parallel_size=3, block_size=64))
    assert (options["data_parallel_size"], options["block_size"]) == (3, 64)
    assert options["draft_model"] is None


def test_a_model_may_lie_in_another_folder(tmp_path: Path) -> None:
    names = []
    for folder in ("here", "there"):
        path = tmp_path / folder / "model.gguf"
        path.parent.mkdir()
        path.touch()
        names.append(shared_options(EngineArgs(model=str(path), speculation="draft", draft_model=str(path))))
    assert names[0] == names[1]
    assert names[0]["model"] == names[0]["draft_model"] == "model.gguf"


def test_the_secret_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    environment = {SECRET_VARIABLE: SECRET}
    assert cluster_secret(EngineArgs(), environment) == SECRET.encode()
    assert cluster_secret(secret_file(tmp_path, "long, from a file\n"), environment) == b"long, from a file"


def test_without_a_secret_the_remedy_is_named() -> None:
    with pytest.raises(UsageError, match="--cluster-secret-file, or TRIOLET_CLUSTER_SECRET") as caught:
        cluster_secret(EngineArgs(), {})
    assert caught.value.param == "cluster_secret_file"


def test_a_short_secret_is_refused_without_showing_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a secret of 5 characters: take 16 or more") as caught:
        cluster_secret(secret_file(tmp_path, "guess"), {})
    assert "guess" not in str(caught.value)
    with pytest.raises(UsageError, match="TRIOLET_CLUSTER_SECRET is a secret of 1 characters"):
        cluster_secret(EngineArgs(), {SECRET_VARIABLE: "x"})


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*nothing: No such file") as caught:
        cluster_secret(EngineArgs(cluster_secret_file=tmp_path / "nothing"), {})
    assert caught.value.param == "cluster_secret_file"


@pytest.mark.parametrize(("mode", "is_told"), [(0o600, False), (0o640, True), (0o604, True)])
def test_a_file_that_others_can_read_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, *, is_told: bool
) -> None:
    cluster_secret(secret_file(tmp_path, SECRET, mode), {})
    assert ("chmod 600" in caplog.text) is is_told
