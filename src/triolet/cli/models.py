"""``triolet models``: the built-in models, and which of them are on this machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from triolet.args import DEFAULT_MODEL

__all__ = ["DESCRIPTION", "SUMMARY", "add_arguments", "run"]

SUMMARY = "list the built-in models"
DESCRIPTION = (
    "List the models that have a short name, with where their files are or will be. Any GGUF file, Hugging "
    "Face directory or hub id may be named as a model as well."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cache-dir",
        type=Path,
        metavar="DIR",
        help="folder for fetched models; ~/.cache/triolet if not given",
    )


def run(namespace: argparse.Namespace) -> int:
    from triolet.models.fetch import BUILTIN_MODELS, default_cache_dir

    cache_dir = namespace.cache_dir or default_cache_dir()
    for model in BUILTIN_MODELS.values():
        path = cache_dir / model.name / model.file_name
        is_cached = path.is_file() and path.stat().st_size == model.num_bytes
        mark = " (default)" if model.name == DEFAULT_MODEL else ""
        print(f"{model.name}{mark}")
        print(f"    size     {model.num_bytes / 1e6:.0f} MB, {model.license}")
        print(f"    state    {'on this machine' if is_cached else 'not fetched yet'}")
        print(f"    path     {path}")
    return 0
