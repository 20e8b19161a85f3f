"""A launch finds its models once."""

from __future__ import annotations

from pathlib import Path

import pytest

from triolet.args import EngineArgs, ServeArgs
from triolet.cluster.model_places import find_models, with_model_at
from triolet.errors import UsageError
from triolet.models.source import local_files

pytestmark = pytest.mark.anyio


async def test_engines_are_told_where_the_models_are(
    byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(byte_model.parent)
    name = byte_model.name
    found = await find_models(ServeArgs(model=name, draft_model=f"./{name}", speculation="draft", port=1))
    assert isinstance(found, ServeArgs)
    assert (Path(found.model), Path(found.draft_model or "")) == (Path(name), Path(name))
    assert found.port == 1


def test_a_revision_was_that_of_the_name(byte_model: Path) -> None:
    told = with_model_at(EngineArgs(model="owner/model", revision="v1"), local_files(byte_model))
    assert (told.model, told.revision) == (str(byte_model), None)


async def test_what_names_nothing_is_told() -> None:
    with pytest.raises(UsageError, match="nothing that is known here") as error:
        await find_models(EngineArgs(model="no-such-model"))
    assert error.value.param == "model"
