"""Models of several sizes and formats one after the other, each beside what the machine allows it at most.

    python -m bench.models --csv models.csv
    python -m bench.models --models smollm2-135m-instruct gemma-3-270m-q4_k_m.gguf llama-1b-int4

Each runs in a process of its own, by ``bench.offline --limit``; the ceilings are measured beside each. Names
are those of :mod:`bench.random_model`, or what ``--model`` takes. With ``TRIOLET_CPU_ISA`` in the environment
it measures the kernels of another CPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.random_model import RANDOM_MODELS
from bench.report import print_table, write_csv
from triolet.args import DEFAULT_MODEL

__all__ = ["main"]

_COLUMNS = (
    "model", "batch", "prefill_tokens_per_s", "decode_tokens_per_s", "limit_tokens_per_s", "share",
    "read_gb_per_s", "matmul_gflop_per_s",
)  # fmt: skip


def _measure(name: str, arguments: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of one model. Raises CalledProcessError if it cannot be measured."""
    layout = RANDOM_MODELS.get(name)
    chosen = ["--model", name] if layout is None else ["--random", name]
    if layout is not None and layout.kind == "F32":
        chosen += ["--dtype", "float32"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "bench.offline", *chosen, "--limit", "--json", str(path), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows = json.loads(path.read_text())["rows"]
    label = Path(name).stem if Path(name).suffix == ".gguf" else name
    return [{"model": label, **row} for row in rows]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.models", description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=[DEFAULT_MODEL, *RANDOM_MODELS])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--csv", type=Path, help="write the rows here")
    options = parser.parse_args(argv)
    arguments = ["--batch", *map(str, options.batch), "--max-tokens", str(options.max_tokens)]
    rows = [row for name in options.models for row in _measure(name, arguments)]
    print_table(rows, _COLUMNS)
    if options.csv:
        write_csv(options.csv, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
