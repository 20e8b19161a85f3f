"""The project's own Python files, and what the rules need to know of each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__all__ = [
    "ROOT",
    "functions_of",
    "modules_with_code",
    "parse",
    "project_files",
    "public_names",
    "source_modules",
]

ROOT = Path(__file__).parents[2]

SOURCES = ("src/server", "src/triolet", "kernels", "bench")


def project_files(*folders: str) -> list[Path]:
    """Every Python file under the folders, relative to the root."""
    files = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(path.relative_to(ROOT) for path in files)


def source_modules() -> list[Path]:
    """Every Python file that is not a test."""
    return project_files(*SOURCES)


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


def functions_of(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def public_names(path: Path) -> set[str]:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    names = {node.name for node in parse(path).body if isinstance(node, kinds)}
    return {name for name in names if not name.startswith("_")}


def modules_with_code() -> list[Path]:
    """All but packages that only have a docstring, or pass names on."""
    return [path for path in source_modules() if path.name != "__init__.py" or public_names(path)]
