"""The files of the web page: short, commented, nothing from elsewhere, and text never becomes markup."""

from __future__ import annotations

import re
from pathlib import Path

from tests.hygiene.source_files import ROOT

PAGE = ROOT / "src/triolet/web/page"
FILES = sorted(PAGE.iterdir())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
MAX_LINES = 300
MARKUP = (
    "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "eval(", "new Function",
    "createContextualFragment", "srcdoc",
)  # fmt: skip


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_they_are_short_and_the_scripts_say_what_they_are_for() -> None:
    assert len(SCRIPTS) > 10
    assert {path.name: len(lines_of(path)) for path in FILES if len(lines_of(path)) > MAX_LINES} == {}
    assert [path.name for path in SCRIPTS if not path.read_text().startswith("// ")] == []
    too_wide = [path.name for path in SCRIPTS for line in lines_of(path) if len(line) > 130]
    assert too_wide == []


def test_no_text_becomes_markup() -> None:
    found = [(path.name, name) for path in SCRIPTS for name in MARKUP if name in path.read_text()]
    assert found == []


def test_nothing_comes_from_elsewhere() -> None:
    for path in FILES:
        addresses = re.findall(
            r"https?://[\w.-]+", path.read_text().replace("http://www.w3.org/2000/svg", "")
        )
        assert addresses == [], path.name
    assert "@import" not in (PAGE / "style.css").read_text()
    assert "url(" not in (PAGE / "style.css").read_text()


def test_the_document_holds_neither_scripts_nor_styles() -> None:
    document = (PAGE / "index.html").read_text()
    assert re.findall(r"<script(?![^>]* src=)", document) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=", document) == []
    assert "https:" not in document
