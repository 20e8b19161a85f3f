"""Finds, checks and declares the compiled kernels.

The library is plain C: it is opened with ctypes, which lets go of the GIL during each call. Each kernel
exists once per instruction set; the best one this CPU runs is taken, or the one ``TRIOLET_CPU_ISA`` names.
This module must not know what the kernels compute, only how they are called.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

__all__ = ["DTYPES", "INSTRUCTION_SETS", "LIBRARY_PATH", "NativeError", "NativeLibrary"]

LIBRARY_PATH = Path(__file__).with_name("libtriolet_cpu.so")

INSTRUCTION_SETS = {"amx": 32, "avx512": 16, "avx2": 8, "portable": 4}
"""Variants, best first, with what lengths must be multiples of: a vector of float32, or a matrix tile."""

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
"""Number formats the kernels exist for."""

_MOST_LANES = max(INSTRUCTION_SETS.values())
_Signature = list[type[ctypes.c_void_p] | type[ctypes.c_int64] | type[ctypes.c_float]]

_POINTER, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_TEAM: _Signature = [_POINTER, _INT]
_SIGNATURES: Mapping[str, _Signature] = {
    "rms_norm": [*[_POINTER] * 3, _INT, _INT, _FLOAT, *_TEAM],
    "rms_norm_of_float32": [*[_POINTER] * 3, _INT, _INT, _FLOAT, *_TEAM],
    "add_rms_norm": [*[_POINTER] * 4, _INT, _INT, _FLOAT, *_TEAM],
    "silu_mul": [_POINTER, _POINTER, _INT, _INT, *_TEAM],
    "gelu_mul": [_POINTER, _POINTER, _INT, _INT, *_TEAM],
    "rotary_and_cache": [*[_POINTER] * 7, *[_INT] * 5, _POINTER, _POINTER, _FLOAT, *_TEAM],
    "draw": [*[_POINTER] * 9, _INT, _INT, *_TEAM],
    "linear": [*[_POINTER] * 4, *[_INT] * 5, *_TEAM],
    "dense_linear": [*[_POINTER] * 4, *[_INT] * 3, *_TEAM],
    "plain_attention": [*[_POINTER] * 7, *[_INT] * 8, _FLOAT, _INT, *_TEAM],
    "tile_linear": [*[_POINTER] * 4, *[_INT] * 4, _FLOAT, *_TEAM],
    "paged_attention": [*[_POINTER] * 7, *[_INT] * 8, _FLOAT, _INT, *_TEAM],
}

Kernel = Callable[..., None]


class NativeError(Exception):
    """The compiled kernels cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class NativeLibrary:
    """The opened library, or none. ``isa`` is the variant used where shapes allow it."""

    library: ctypes.CDLL | None
    isa: str
    team: tuple[int | None, int]
    """Address of the function that shares work between threads, and how many threads to share it between."""

    @classmethod
    def open(
        cls, environment: Mapping[str, str], num_threads: int = 1, path: Path | None = None
    ) -> NativeLibrary:
        """The library at ``path``, or the one beside this module, for ``num_threads`` threads.

        Raises NativeError if there is none, ValueError if the CPU lacks the variant asked for.
        """
        try:
            library = ctypes.CDLL(str(path or LIBRARY_PATH))
        except OSError as error:
            raise NativeError(f"the native CPU kernels were not built ({error})") from error
        runnable = [isa for isa in INSTRUCTION_SETS if _runs(library, isa)]
        wanted = environment.get("TRIOLET_CPU_ISA", "")
        if wanted and wanted not in runnable:
            raise ValueError(f"TRIOLET_CPU_ISA={wanted}: must be one of {', '.join(runnable)} on this CPU")
        run_team = ctypes.cast(library["triolet_run_team"], ctypes.c_void_p).value
        return cls(library, wanted or runnable[0], (run_team, num_threads))

    @classmethod
    def missing(cls) -> NativeLibrary:
        """The library of an installation without compiled kernels: it has no kernel for anything."""
        return cls(None, "torch", (None, 1))

    def kernels(self, name: str, *, multiple_of: int = _MOST_LANES) -> dict[torch.dtype, Kernel]:
        """Kernel ``name`` for each number format it takes, in the best variant, up to ``isa``, for the shape.

        ``multiple_of`` divides every length the kernel works along; empty if no variant has so few lanes.
        """
        if self.library is None:
            return {}
        names = list(INSTRUCTION_SETS)
        for isa in names[names.index(self.isa) :]:
            found = {
                dtype: f"{text}_{isa}"
                for dtype, text in DTYPES.items()
                if hasattr(self.library, f"triolet_{name}_{text}_{isa}")
            }
            if found and multiple_of % INSTRUCTION_SETS[isa] == 0 and _runs(self.library, isa):
                return {dtype: _kernel(self.library, name, variant) for dtype, variant in found.items()}
        return {}


def _kernel(library: ctypes.CDLL, name: str, variant: str) -> Kernel:
    function = library[f"triolet_{name}_{variant}"]
    function.argtypes, function.restype = _SIGNATURES[name], None
    return function


def _runs(library: ctypes.CDLL, isa: str) -> bool:
    try:
        return bool(library[f"triolet_runs_{isa}"]())
    except AttributeError:
        return False
