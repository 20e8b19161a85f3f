"""The code blocks of the documentation, each with where it stands and whether it is to be run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.hygiene.source_files import ROOT

__all__ = ["DOCUMENTS", "Snippet", "snippets"]

DOCUMENTS = sorted([ROOT / "README.md", ROOT / "bench/README.md", *(ROOT / "docs").rglob("*.md")])

_BLOCK = re.compile(
    r"(?P<skip><!-- not run: (?P<reason>.+?) -->\n)?"
    r"(?P<indent> *)```(?P<language>\w+)\n(?P<code>.*?)\n(?P=indent)```",
    re.DOTALL,
)


@dataclass(frozen=True)
class Snippet:
    """``reason`` says why it is not run, if it is not."""

    path: Path
    line: int
    language: str
    code: str
    reason: str | None

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def snippets(*languages: str) -> Iterator[Snippet]:
    """Every block in one of the languages, in the order of the documents."""
    for path in DOCUMENTS:
        text = path.read_text()
        for match in _BLOCK.finditer(text):
            if match["language"] in languages:
                line = text.count("\n", 0, match.start("code"))
                code = re.sub(f"^{match['indent']}", "", match["code"], flags=re.MULTILINE)
                yield Snippet(path, line, match["language"], code, match["reason"])
