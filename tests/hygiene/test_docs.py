"""What the documentation says is true: its pages are current, its links lead somewhere, its flags exist."""

from __future__ import annotations

import importlib.util
import re
import shlex

import pytest
from tests.hygiene.snippets import DOCUMENTS, snippets
from tests.hygiene.source_files import ROOT

from triolet.cli.command import make_parser

TEST_COMMAND = (
    "python3 -m venv .venv && .venv/bin/pip install -e '.[dev]' && "
    ".venv/bin/python -m pytest -n 2 --dist worksteal"
)
SERVE_COMMAND = "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/python -m server"


def test_the_generated_pages_are_current() -> None:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs/generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    stale = [path.name for path, render in generate.PAGES.items() if path.read_text() != render()]
    assert stale == [], "run: python docs/generate.py"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: object) -> None:
    document = ROOT / str(path)
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text())
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (document.parent / target).exists()] == []


def test_every_page_can_be_reached_from_the_index() -> None:
    seen, to_visit = set(), [ROOT / "docs/index.md"]
    while to_visit:
        page = to_visit.pop()
        seen.add(page)
        links = re.findall(r"\]\(([^)#:]+\.md)", page.read_text())
        to_visit += {(page.parent / link).resolve() for link in links} - seen
    assert sorted(str(path) for path in (ROOT / "docs").rglob("*.md") if path not in seen) == []


def known_flags(command: str) -> set[str]:
    parser = make_parser()
    [commands] = [action for action in parser._actions if action.choices]
    assert isinstance(commands.choices, dict)
    return set(commands.choices[command]._option_string_actions)


def test_flags_in_commands_exist() -> None:
    pattern = re.compile(r"(?:python -m server|triolet (serve|chat|complete|models))\b(.*)")
    for document in DOCUMENTS:
        for line in document.read_text().replace("\\\n", " ").splitlines():
            for command, rest in pattern.findall(line.split(" #")[0]):
                flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", rest.split("`")[0]))
                unknown = flags - known_flags(command or "serve")
                assert not unknown, f"{document}: {line}"


def test_the_readme_has_the_two_commands_and_ci_runs_the_second() -> None:
    readme = (ROOT / "README.md").read_text()
    assert f"\n{SERVE_COMMAND}\n" in readme
    assert f"\n{TEST_COMMAND}\n" in readme
    assert f"\n{TEST_COMMAND}\n" in (ROOT / ".ci/run").read_text()
    assert shlex.split(SERVE_COMMAND)[-1] == "server"


def test_every_snippet_is_run_or_says_why_not() -> None:
    languages = {snippet.language for snippet in snippets("python", "sh", "yaml", "text", "console", "bash")}
    assert languages <= {"python", "sh", "yaml", "text"}
