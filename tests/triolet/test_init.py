from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import triolet

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "quart", "hypercorn", "transformers", "tokenizers", "triton", "numpy", "anyio", "rich")


@pytest.mark.parametrize("name", triolet.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(triolet, name) is not None
    assert name in dir(triolet)


def test_each_name_is_where_type_checkers_are_told() -> None:
    assert set(triolet._HOMES) | {"__version__"} == set(triolet.__all__)
    for name, home in triolet._HOMES.items():
        assert getattr(triolet, name).__module__ == home


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Motor'"):
        triolet.Motor  # noqa: B018
    assert not hasattr(triolet, "Motor")


def test_the_version_is_that_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert triolet.__version__ == project["version"]


def test_import_is_light() -> None:
    script = f"import triolet, sys; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.strip() == "[]"


def test_the_names_users_build_with_load_no_torch() -> None:
    script = (
        "import sys; from triolet import Engine, EngineArgs, LLM, LLMEngine, SamplingParams; "
        "Engine(); print('torch' in sys.modules, 'quart' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.split() == ["False", "False"]
