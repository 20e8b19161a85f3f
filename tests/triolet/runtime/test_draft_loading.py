"""What does not go together is refused before anything is loaded, naming both and the way out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.tiny_models import build_tiny_model

from triolet.args import EngineArgs
from triolet.errors import UsageError
from triolet.models.source import local_files
from triolet.runtime.runner import ModelRunner


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("draft_loading")
    for name in ("llama3", "llama-linear-odd", "mistral"):
        build_tiny_model(name).save_pretrained(folder / name)
    shutil.copytree(folder / "llama3", folder / "short")
    config = json.loads((folder / "short" / "config.json").read_text())
    config["max_position_embeddings"] = 100
    (folder / "short" / "config.json").write_text(json.dumps(config))
    return folder


def load(folder: Path, name: str, draft: str, **options: int) -> list[str]:
    phases: list[str] = []
    args = EngineArgs(
        model=str(folder / name), draft_model=str(folder / draft), speculation="draft", device="cpu",
        block_size=8, num_threads=1, **options,  # type: ignore[arg-type]
    )  # fmt: skip
    ModelRunner.load(local_files(folder / name), args, phases.append).close()
    return list(dict.fromkeys(phases))


def test_phases_tell_of_the_draft_model(folder: Path) -> None:
    assert load(folder, "llama3", "mistral") == [
        "loading weights", "finding the draft model", "loading the draft model", "allocating KV cache",
        "warming up",
    ]  # fmt: skip


def test_a_vocabulary_of_another_size(folder: Path) -> None:
    with pytest.raises(UsageError) as error:
        load(folder, "llama3", "llama-linear-odd")
    assert error.value.param == "draft_model"
    for part in ("llama-linear-odd has a vocabulary of 101", "llama3 one of 160", "the same family"):
        assert part in str(error.value)


def test_a_shorter_context(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"short was made for contexts of 100 tokens.* --max-model-len 100"):
        load(folder, "llama3", "short")
    assert load(folder, "llama3", "short", max_model_len=100)[-1] == "warming up"


def test_a_model_that_forgets_sooner_than_its_draft_model(folder: Path) -> None:
    with pytest.raises(
        UsageError, match=r"llama3 looks further back than the 11 tokens that the model .*mistral"
    ):
        load(folder, "mistral", "llama3")
    assert load(folder, "mistral", "mistral")[-1] == "warming up"


def test_a_model_that_is_nowhere(folder: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        load(folder, "llama3", "nowhere")
