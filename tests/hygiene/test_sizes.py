"""A file fits in the head: at most 400 lines, a function at most 60."""

from __future__ import annotations

from pathlib import Path

from tests.hygiene.source_files import ROOT, functions_of, parse, project_files, source_modules

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
NATIVE_ENDINGS = (".cpp", ".h")


def native_files() -> list[Path]:
    files = (ROOT / "kernels").rglob("*")
    return sorted(path.relative_to(ROOT) for path in files if path.suffix in NATIVE_ENDINGS)


def test_no_file_is_too_long() -> None:
    lengths = {
        str(path): len((ROOT / path).read_text().splitlines())
        for path in [*source_modules(), *project_files("tests"), *native_files()]
    }
    too_long = {path: length for path, length in lengths.items() if length > MAX_FILE_LINES}
    assert not too_long, "find the second reason that each of these files exists"


def test_no_function_is_too_long() -> None:
    too_long = [
        f"{path}:{function.lineno} {function.name}"
        for path in [*source_modules(), *project_files("tests")]
        for function in functions_of(parse(path))
        if function.end_lineno is not None and function.end_lineno - function.lineno >= MAX_FUNCTION_LINES
    ]
    assert too_long == []
