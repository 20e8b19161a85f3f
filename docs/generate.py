"""Writes the pages of the reference that follow from the code: ``python docs/generate.py``.

A test fails when a page is not what this would write. Knows the layout of the pages, and no fact of its own.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

from triolet import errors
from triolet.args import EngineArgs, ServeArgs
from triolet.cli.options import Option, options_of
from triolet.metrics import EngineCollector
from triolet.statistics import EngineState, EngineStatistics, Histogram, RankStatistics

__all__ = ["PAGES", "main"]

_REFERENCE = Path(__file__).parent / "reference"
_NOTE = "<!-- Written by docs/generate.py; edit the code it is written from instead. -->\n"


def _options_page() -> str:
    engine_names = {field.name for field in fields(EngineArgs)}
    parts = [
        "# Options\n",
        _NOTE,
        "All of them are flags of `python -m server` and `triolet serve`, and fields of `triolet.ServeArgs`.",
        "Those outside the HTTP group are also fields of `triolet.EngineArgs`, keyword arguments of",
        "`Engine`, `LLM` and `LLMEngine`, and flags of `triolet chat --offline` and",
        "`triolet complete --offline`.\n",
        "The model may also be given as the first argument: `python -m server model.gguf`.",
    ]
    options = options_of(ServeArgs)
    for group, title in {option.group: option.title for option in options}.items():
        parts.append(f"\n## {title[0].upper()}{title[1:]}\n")
        parts.append("| flag | field | default | meaning |\n|---|---|---|---|")
        for option in options:
            if option.group == group:
                parts.append(_option_row(option))
                assert (option.name in engine_names) == (group != "http")
    return "\n".join(parts) + "\n"


def _option_row(option: Option) -> str:
    value = f"{{{','.join(option.choices)}}}" if option.choices else option.metavar
    value = f" {value}{' …' if option.is_list else ''}" if value else ""
    value = value.replace("|", "\\|")
    default = f"`{option.default_text}`" if option.default_text else ""
    return f"| `{option.flag}{value}` | `{option.name}` | {default} | {option.help} |"


def _errors_page() -> str:
    parts = [
        "# Errors\n",
        _NOTE,
        "Every exception raised on purpose is a `triolet.TrioletError`; the others are in `triolet.errors`.",
        'Over HTTP each becomes `{"error": {"message", "type", "param", "code"}}` with the status below.',
        "In a stream that has begun, the same object comes as an event, followed by `[DONE]`. On the",
        "command line the message is printed as it is, with exit code 2 for a `UsageError` and 1 for any",
        "other.\n",
        "| exception | status | type | code | raised when |\n|---|---|---|---|---|",
    ]
    for depth, error in _error_tree(errors.TrioletError, 0):
        summary = inspect.cleandoc(error.__doc__ or "").split("\n\n")[0].replace("\n", " ")
        summary = summary.replace("``", "`")
        status = "429 or 503" if error is errors.OverloadedError else str(error.status)
        code = f"`{error.code}`" if error.code else ""
        indent = "&nbsp;&nbsp;" * depth
        parts.append(f"| {indent}`{error.__name__}` | {status} | `{error.error_type}` | {code} | {summary} |")
    return "\n".join(parts) + "\n"


def _error_tree(
    error: type[errors.TrioletError], depth: int
) -> Iterator[tuple[int, type[errors.TrioletError]]]:
    yield depth, error
    for child in error.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _error_tree(child, depth + 1)


def _metrics_page() -> str:
    parts = [
        "# Metrics\n",
        _NOTE,
        "`GET /metrics` answers in the text format of Prometheus. Gauges and states are read from the",
        "engine at the moment of the scrape. The label `engine` is the rank of an engine core: each has its",
        "own series, and theirs add up; one that does not answer within two seconds has what it told last.",
        "Beside these come the `process_…` metrics of the Prometheus client, unless there are several API "
        "servers.\n",
        "| name | type | labels | meaning |\n|---|---|---|---|",
    ]
    statistics = EngineStatistics(
        state=EngineState.READY,
        ranks=(RankStatistics(rank=0),),
        outcomes={"stop": 0},
        num_prompt_tokens=0,
        num_generated_tokens=0,
        time_to_first_token=Histogram(),
        inter_token_latency=Histogram(),
        request_latency=Histogram(),
    )
    for family in EngineCollector(statistics, model_name="m").collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in family.samples[0].labels if label != "le")
        parts.append(f"| `{name}` | {family.type} | {labels} | {family.documentation} |")
    return "\n".join(parts) + "\n"


PAGES: dict[Path, Callable[[], str]] = {
    _REFERENCE / "options.md": _options_page,
    _REFERENCE / "errors.md": _errors_page,
    _REFERENCE / "metrics.md": _metrics_page,
}


def main() -> int:
    """Write every page."""
    for path, render in PAGES.items():
        path.write_text(render())
    return 0


if __name__ == "__main__":
    sys.exit(main())
