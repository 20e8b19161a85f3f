"""Finds, checks and declares the compiled kernels.

The library is plain C: it is opened with ctypes, which lets go of the GIL during each call. Each kernel
exists once per instruction set; the best one this CPU runs is taken, or the one ``TRIOLET_CPU_ISA`` names.
This module must not know what the kernels compute, only how they are called.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import torch

__all__ = [
    "DTYPES",
    "INSTRUCTION_SETS",
    "LIBRARY_PATH",
    "Argument",
    "Kernel",
    "NativeError",
    "NativeLibrary",
    "Recording",
    "Value",
    "is_usable",
    "word_of",
]

LIBRARY_PATH = Path(__file__).with_name("libtriolet_cpu.so")

INSTRUCTION_SETS = {"amx": 32, "avx512": 16, "avx2": 8, "portable": 4}
"""Variants, best first, with what lengths must be multiples of: a vector of float32, or a matrix tile."""

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
"""Number formats the kernels exist for."""

_MOST_LANES = max(INSTRUCTION_SETS.values())


class Argument(Enum):
    """What an argument of a kernel is. The last ones differ from step to step."""

    POINTER = auto()
    INT = auto()
    FLOAT = auto()
    ROWS = auto()
    """Number of tokens, or of those that are looked at in the end, or a multiple of either."""
    SEQUENCES = auto()
    TABLE_STRIDE = auto()
    MAX_LENGTH = auto()


Value = int | float | None
_Signature = list[Argument]

_POINTER, _INT, _FLOAT, _ROWS = Argument.POINTER, Argument.INT, Argument.FLOAT, Argument.ROWS
_BATCH = [Argument.SEQUENCES, Argument.TABLE_STRIDE, Argument.MAX_LENGTH]
_ROTARY = [*[_POINTER] * 7, _ROWS, *[_INT] * 4, _POINTER, _POINTER, _FLOAT]
_ATTENTION = [*[_POINTER] * 7, _ROWS, *_BATCH, *[_INT] * 4, _FLOAT, _INT]
_TILE_LINEAR = [*[_POINTER] * 4, _ROWS, *[_INT] * 3, _FLOAT]
_SIGNATURES: Mapping[str, _Signature] = {
    "rms_norm": [*[_POINTER] * 3, _ROWS, _INT, _FLOAT],
    "rms_norm_of_float32": [*[_POINTER] * 3, _ROWS, _INT, _FLOAT],
    "add_rms_norm": [*[_POINTER] * 4, _ROWS, _INT, _FLOAT],
    "norm_columns": [_POINTER, _POINTER, _ROWS, *[_INT] * 3, _FLOAT],
    "silu_mul": [_POINTER, _POINTER, _ROWS, _INT],
    "gelu_mul": [_POINTER, _POINTER, _ROWS, _INT],
    "take_rows": [*[_POINTER] * 3, _ROWS, _INT],
    "embedding": [*[_POINTER] * 3, _ROWS, *[_INT] * 3],
    "to_float32": [_POINTER, _POINTER, _ROWS, _INT],
    "draw": [*[_POINTER] * 11, _ROWS, _INT],
    "rank": [*[_POINTER] * 9, *[_INT] * 3],
    "draw_others": [*[_POINTER] * 6, *[_INT] * 3],
    "rotary_and_cache": _ROTARY,
    "rotary_and_codes": _ROTARY,
    "linear": [*[_POINTER] * 4, _ROWS, *[_INT] * 4],
    "dense_linear": [*[_POINTER] * 4, _ROWS, *[_INT] * 2],
    "tile_linear": _TILE_LINEAR,
    "silu_tile_linear": _TILE_LINEAR,
    "gelu_tile_linear": _TILE_LINEAR,
    "route": [*[_POINTER] * 5, _ROWS, *[_INT] * 3],
    "expert_linear": [*[_POINTER] * 6, *[_INT] * 6],
    "sum_experts": [*[_POINTER] * 4, _ROWS, _INT, _INT],
    "add_shared_expert": [*[_POINTER] * 3, _ROWS, _INT],
    "paged_attention": _ATTENTION,
    "paged_attention_of_codes": _ATTENTION,
    "plain_attention": _ATTENTION,
    "plain_attention_of_codes": _ATTENTION,
}
"""Of each kernel by name, but for what all end with: the team's function and its number of threads."""

_BRIEF = frozenset({"embedding"})
"""Kernels that keep the interpreter's lock: who took it would have it for longer than they run."""

_C_TYPES: Mapping[Argument, Any] = {_POINTER: ctypes.c_void_p, _FLOAT: ctypes.c_float}
_C_TYPES_OF_TEAM: Sequence[Any] = (ctypes.c_void_p, ctypes.c_int64)


def word_of(role: Argument, value: Value) -> int:
    """An argument as 64 bits, as what calls kernels for a program takes it."""
    if role is Argument.FLOAT:
        return int(struct.unpack("<i", struct.pack("<f", value))[0])
    return int(value or 0)


class Recording(Protocol):
    """What is told of kernel calls instead of the kernels."""

    def add(self, kernel: Kernel, values: Sequence[Value]) -> None: ...


class Kernel:
    """One compiled kernel. Calling it runs it, or writes the call down if a recording is under way."""

    def __init__(
        self, library: ctypes.CDLL, name: str, variant: str, recordings: Sequence[Recording]
    ) -> None:
        self.name = name
        self.signature = _SIGNATURES[name]
        types = (*(_C_TYPES.get(role, ctypes.c_int64) for role in self.signature), *_C_TYPES_OF_TEAM)
        function_type = ctypes.PYFUNCTYPE if name in _BRIEF else ctypes.CFUNCTYPE
        self._function = function_type(ctypes.c_bool, *types)((f"triolet_{name}_{variant}", library))
        self.address = _address(library, f"triolet_{name}_{variant}")
        self.caller = _address(library, f"triolet_call_{name}")
        """What calls it for a program; None if programs do not use it."""
        self._recordings = recordings

    def __call__(self, *values: Value) -> None:
        """``values`` as the signature says, then the team's. MemoryError if it gets no memory to work in."""
        if self._recordings:
            self._recordings[-1].add(self, values[: -len(_C_TYPES_OF_TEAM)])
        elif not self._function(*values):
            raise MemoryError(f"no memory for the kernel {self.name} to work in")


class NativeError(Exception):
    """The compiled kernels cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class NativeLibrary:
    """The opened library, or none. ``isa`` is the variant used where shapes allow it."""

    library: ctypes.CDLL | None
    isa: str
    team: tuple[int | None, int]
    """Address of the function that shares work between threads, and how many threads to share it between."""
    recordings: list[Recording] = field(default_factory=list)
    """While there are any, the last one is told of kernel calls instead of the kernels."""

    @classmethod
    def open(
        cls, environment: Mapping[str, str], num_threads: int = 1, path: Path | None = None
    ) -> NativeLibrary:
        """The library at ``path``, or the one beside this module, for ``num_threads`` threads.

        Raises NativeError if there is none or it is of other sources than those beside this module,
        ValueError if the CPU lacks the variant asked for.
        """
        library = _open(path or LIBRARY_PATH)
        runnable = [isa for isa in INSTRUCTION_SETS if _runs(library, isa)]
        wanted = environment.get("TRIOLET_CPU_ISA", "")
        if wanted and wanted not in runnable:
            raise ValueError(f"TRIOLET_CPU_ISA={wanted}: must be one of {', '.join(runnable)} on this CPU")
        run_team = _address(library, "triolet_run_team")
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
                return {
                    dtype: Kernel(self.library, name, variant, self.recordings)
                    for dtype, variant in found.items()
                }
        return {}


def is_usable() -> bool:
    """Whether there are compiled kernels, and of the sources that are here."""
    try:
        _open(LIBRARY_PATH)
    except NativeError:
        return False
    return True


def _open(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeError(f"the native CPU kernels were not built ({error})") from error
    _check_sources(library)
    return library


def _address(library: ctypes.CDLL, symbol: str) -> int | None:
    """Where a function is; None if there is none of that name."""
    return ctypes.cast(library[symbol], ctypes.c_void_p).value if hasattr(library, symbol) else None


def _check_sources(library: ctypes.CDLL) -> None:
    """A library compiled before the sources changed would be called with arguments it does not know."""
    folder = LIBRARY_PATH.parent
    names = sorted([*folder.glob("*.cpp"), *folder.glob("*.h"), *folder.glob("loader.py")])
    digest = sha256(b"".join(path.read_bytes() for path in names)).hexdigest()
    told = getattr(library, "triolet_sources", None)
    if told is not None:
        told.restype = ctypes.c_char_p
    if told is None or told() != digest.encode():
        raise NativeError(
            "the native CPU kernels were built from other sources; run: python kernels/build_cpu.py"
        )


def _runs(library: ctypes.CDLL, isa: str) -> bool:
    try:
        return bool(library[f"triolet_runs_{isa}"]())
    except AttributeError:
        return False
