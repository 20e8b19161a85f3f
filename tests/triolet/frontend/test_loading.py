from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.fakes import write_byte_model

from triolet.args import EngineArgs
from triolet.errors import TrioletError, UsageError
from triolet.frontend.loading import PhaseLog, find_draft_model, find_model, load_text, served_names
from triolet.models.source import ModelFiles

HI = [{"role": "user", "content": "Hi"}]


def find(folder: Path) -> ModelFiles:
    return find_model(EngineArgs(model=str(folder)), lambda phase: None)


def test_find_model_tells_what_it_does(byte_model: Path) -> None:
    phases: list[str] = []
    files = find_model(EngineArgs(model=str(byte_model)), phases.append)
    assert files.path == byte_model
    assert phases[0] == "finding the model"


def test_a_draft_model_is_found_for_all_engines(byte_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(byte_model.parent)
    phases: list[str] = []
    args = EngineArgs(draft_model=f"./{byte_model.name}", speculation="draft")
    assert find_draft_model(args, phases.append).draft_model == byte_model.name
    assert phases[0] == "finding the draft model"
    assert find_draft_model(EngineArgs(), phases.append) == EngineArgs()


def test_a_phase_that_is_told_again_and_again_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    tell = PhaseLog(logging.getLogger("triolet.engine"))
    for phase in ("loading", "loading", "warming up", "loading"):
        tell(phase)
    assert caplog.messages == ["loading", "warming up", "loading"]


def test_a_model_that_is_nowhere_is_an_error_of_ours() -> None:
    with pytest.raises(TrioletError, match=r"nowhere\.gguf"):
        find_model(EngineArgs(model="/tmp/nowhere.gguf"), lambda phase: None)


def test_the_models_own_template(byte_model: Path) -> None:
    tokenizer, template = load_text(find(byte_model), EngineArgs())
    assert template is not None
    assert template.render(HI) == "[user]Hi\n[assistant]"
    assert tokenizer.encode("a") == [ord("a")]


def test_a_model_without_template(tmp_path: Path) -> None:
    _, template = load_text(find(write_byte_model(tmp_path / "plain")), EngineArgs())
    assert template is None


def test_a_template_of_ones_own_knows_the_special_tokens(byte_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", encoding="utf-8")
    _, template = load_text(find(byte_model), EngineArgs(chat_template=file))
    assert template is not None
    assert template.render(HI) == "<s>Hi</s>"


def test_a_template_without_end_is_not_read(byte_model: Path) -> None:
    with pytest.raises(UsageError, match=r"--chat-template.*/dev/zero"):
        load_text(find(byte_model), EngineArgs(chat_template=Path("/dev/zero")))


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_template_that_cannot_be_read_is_blamed_on_its_flag(
    byte_model: Path, tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "mine.jinja"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match=r"--chat-template.*mine\.jinja") as caught:
        load_text(find(byte_model), EngineArgs(chat_template=file))
    assert caught.value.param == "chat_template"


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"model": "smollm2-135m-instruct"}, ("smollm2-135m-instruct",)),
        ({"model": "/models/Small.Q4_1.gguf"}, ("Small.Q4_1",)),
        ({"model": "~/Small.GGUF"}, ("Small",)),
        ({"model": "owner/model"}, ("owner/model",)),
        ({"model": "owner/model", "served_model_name": "mine"}, ("mine",)),
        ({"model": "x.gguf", "served_model_name": ("a", "b")}, ("a", "b")),
    ],
)
def test_served_names(options: dict[str, str], names: tuple[str, ...]) -> None:
    assert served_names(EngineArgs(**options)) == names  # type: ignore[arg-type]


def test_a_directory_is_served_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    assert served_names(EngineArgs(model=str(folder))) == ("tiny",)
    assert served_names(EngineArgs(model=f"{folder}/")) == ("tiny",)
    monkeypatch.chdir(folder)
    assert served_names(EngineArgs(model=".")) == ("tiny",)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert served_names(EngineArgs(model="~/tiny")) == ("tiny",)
