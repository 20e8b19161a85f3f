"""The stored table of how each kernel is compiled: tile sizes, warps and pipeline stages.

Nothing is tuned while serving. The table, ``configurations.json``, has for each architecture and kernel one
configuration for each class of shapes; which classes there are is the kernel's own affair.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

__all__ = ["ARCHITECTURES", "Configuration", "Configurations"]

ARCHITECTURES = ("sm_80", "sm_89", "sm_90", "gfx942")
"""Those with a table."""

_BASES = {"sm_89": "sm_80"}
"""Tables that say only what they have besides another, or otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """How one kernel is compiled. ``constants``: tile sizes, by the names of its parameters."""

    num_warps: int
    num_stages: int
    constants: Mapping[str, int]


class Configurations:
    """The part of the table for one architecture."""

    def __init__(self, architecture: str, table: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
        self.architecture = architecture
        self._table = {
            (kernel, shape_class): Configuration(
                num_warps=entry["num_warps"], num_stages=entry["num_stages"], constants=entry["constants"]
            )
            for kernel, entries in table.items()
            for shape_class, entry in entries.items()
        }

    @classmethod
    def load(cls, architecture: str) -> Configurations:
        """Those of an architecture, or of the one with a table that is nearest to it."""
        text = resources.files(__package__).joinpath("configurations.json").read_text(encoding="utf-8")
        tables, nearest = json.loads(text), _nearest(architecture)
        table = tables.get(_BASES.get(nearest), {})
        more = {kernel: table.get(kernel, {}) | entries for kernel, entries in tables[nearest].items()}
        return cls(nearest, table | more)

    def find(self, kernel: str, shape_class: str) -> Configuration | None:
        """How ``kernel`` is compiled for a class of shapes; None if the table has none."""
        return self._table.get((kernel, shape_class))

    def only(self, kernel: str) -> Configuration:
        """The configuration of a kernel that has one for all shapes."""
        return self._table[kernel, "any size"]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Kernel and class of shapes of each configuration."""
        return iter(self._table)


def _nearest(architecture: str) -> str:
    """The architecture whose table serves ``architecture``.

    Only the data centre's sm_90 and sm_100 have as much shared memory as the table of sm_90 takes; the
    others, and all that came later, get by with that of sm_80, and multiply e4m3 from sm_89 on.
    """
    if architecture.startswith("gfx"):
        return "gfx942"
    if re.fullmatch(r"sm_(90|100|103)", architecture):
        return "sm_90"
    return "sm_80" if re.fullmatch(r"sm_8[0-8]", architecture) else "sm_89"
