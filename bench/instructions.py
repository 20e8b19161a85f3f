"""Instructions that kernels take for fixed calls, counted by callgrind: a measure that no other load blurs.

    python -m bench.instructions
    python -m bench.instructions --write

Compares with the counts kept in ``results/instructions.json`` and ends with 1 where one has grown by more
than ``--tolerance``, and then names it. Counts of another compiler cannot be compared, and are only printed.
Needs valgrind, g++ and the compiled kernels; counts the AVX2 variants, the widest that valgrind knows.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.report import print_table
from triolet_kernels.cpu.loader import LIBRARY_PATH

__all__ = ["compare", "count_instructions", "main"]

_SOURCE = Path(__file__).with_name("kernel_calls.cpp")
_STORED = Path(__file__).with_name("results") / "instructions.json"


def count_instructions(library: Path) -> dict[str, int]:
    """Instructions of each call, by its name. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as scratch:
        program = f"{scratch}/kernel_calls"
        subprocess.run(["g++", "-std=c++17", "-O1", str(_SOURCE), "-o", program, "-ldl"], check=True)
        names = subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()
        return {
            name: _count([program, str(library), name], symbol, scratch)
            for name, symbol in (line.split("\t") for line in names)
        }


def _count(command: Sequence[str], symbol: str, scratch: str) -> int:
    callgrind = [
        "valgrind", "--tool=callgrind", f"--callgrind-out-file={scratch}/out", f"--toggle-collect={symbol}"
    ]  # fmt: skip
    done = subprocess.run([*callgrind, *command], check=True, capture_output=True, text=True)
    collected = re.search(r"Collected : (\d+)", done.stderr)
    assert collected is not None, done.stderr
    return int(collected[1])


def compare(stored: Mapping[str, int], counts: Mapping[str, int]) -> list[dict[str, Any]]:
    """A row for each call, with what has changed since ``stored``; None for a call that is new."""
    return [
        {
            "call": name,
            "instructions": count,
            "change": round(count / stored[name] - 1, 4) if name in stored else None,
        }
        for name, count in counts.items()
    ]


def _compiler() -> str:
    done = subprocess.run(["g++", "--version"], check=True, capture_output=True, text=True)
    return done.stdout.splitlines()[0]


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    counts, compiler = count_instructions(LIBRARY_PATH), _compiler()
    if options.write:
        options.stored.write_text(json.dumps({"compiler": compiler, "counts": counts}, indent=2) + "\n")
    stored = json.loads(options.stored.read_text())
    is_comparable = stored["compiler"] == compiler
    table = compare(stored["counts"] if is_comparable else {}, counts)
    print(compiler if is_comparable else f"{compiler}: not comparable with {stored['compiler']}")
    print_table(table, ("call", "instructions", "change"))
    grown = [row["call"] for row in table if (row["change"] or 0) > options.tolerance]
    if grown:
        print(f"more instructions than before, by over {options.tolerance:.0%}: {'; '.join(grown)}")
    return 1 if grown else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Instructions of kernels, counted by callgrind.")
    parser.add_argument("--write", action="store_true", help="keep the counts to compare with from now on")
    parser.add_argument("--stored", type=Path, default=_STORED, help="file they are kept in")
    parser.add_argument("--tolerance", type=float, default=0.02, help="growth that is let through")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
