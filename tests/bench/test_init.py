"""Every benchmark that is a program starts, so that none is broken by a change elsewhere unnoticed."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import bench

PROGRAMS = sorted(
    path.stem
    for path in Path(bench.__path__[0]).glob("*.py")
    if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
)


def test_the_programs_are_found() -> None:
    assert {"grammars", "kernels", "latency", "perplexity", "sampling", "speculation", "wire"} <= {*PROGRAMS}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_tells_its_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        importlib.import_module(f"bench.{name}").main(["--help"])
    assert caught.value.code == 0
    assert "--" in capsys.readouterr().out


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_run_by_a_test_of_its_own(name: str) -> None:
    test = Path(__file__).parent / f"test_{name}.py"
    text = test.read_text(encoding="utf-8")
    assert "main([" in text or f'"-m", "bench.{name}"' in text
