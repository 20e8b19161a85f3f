"""Every module says what it is for and what it offers, and only programs print."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.hygiene.source_files import modules_with_code, parse, public_names, source_modules

MAY_PRINT = ("src/triolet/cli/", "bench/", "kernels/build_cpu.py")


def test_a_module_opens_with_what_it_is_for() -> None:
    assert [str(path) for path in source_modules() if not ast.get_docstring(parse(path))] == []


def test_all_names_every_public_function_and_class() -> None:
    wrong = {}
    for path in modules_with_code():
        if path.name == "__main__.py":
            continue
        listed = listed_names(path)
        missing = public_names(path) - set(listed or ())
        if listed is None or missing or len(set(listed)) < len(listed):
            wrong[str(path)] = sorted(missing) or "no __all__, or names in it twice"
    assert not wrong, "add them, or make them private if nobody else may use them"


def listed_names(path: Path) -> list[str] | None:
    for node in parse(path).body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
        ):
            return list(ast.literal_eval(node.value))
    return None


def test_only_programs_print() -> None:
    prints = [
        f"{path}:{node.lineno}"
        for path in source_modules()
        if not str(path).startswith(MAY_PRINT)
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert prints == []
