"""Compiles the CPU kernels: a hatchling hook for the wheel target, and a script for a checkout.

``python kernels/build_cpu.py`` compiles in place. In a wheel or editable build hatchling runs the same;
without a working compiler the wheel is a pure one, and says so. ``CXX`` names the compiler,
``CXXFLAGS`` adds flags. This file must not need anything but the standard library and, as a hook, hatchling.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

__all__ = ["BuildError", "compile_library", "get_build_hook", "known_variants", "main", "source_digest"]

LIBRARY = "kernels/triolet_kernels/cpu/libtriolet_cpu.so"
COMMON_FLAGS = (
    "-std=c++17",
    "-O3",
    # A sum must not be fused in one place and not in another: results would depend on the batch.
    "-ffp-contract=off",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-Wno-psabi",
)
AVX2_FLAGS = "-mavx2 -mfma -mf16c"
AVX512_FLAGS = f"{AVX2_FLAGS} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx512bf16"
X86_VARIANTS: Mapping[str, str] = {
    "amx": f"{AVX512_FLAGS} -mavx512fp16 -mamx-tile -mamx-bf16",
    "avx512": AVX512_FLAGS,
    "avx2": AVX2_FLAGS,
    "portable": "",
}
ONLY_PORTABLE = ("cpuid", "embedding", "experts", "plain_attention", "program", "rows", "sources", "team")
WITH_TILES = ("attention", "dense_linear", "tile_linear")
ONLY_TILES = ("tile_linear",)


class BuildError(Exception):
    """There is no working compiler; the message says why."""


def compile_library(root: Path, environment: Mapping[str, str], machine: str) -> Path:
    """Compile the sources under ``root`` for ``machine`` and return the library, inside the source tree.

    Raises BuildError.
    """
    compiler = _find_compiler(environment)
    flags = [*COMMON_FLAGS, *shlex.split(environment.get("CXXFLAGS", ""))]
    library = root / LIBRARY
    defined = [f'-DTRIOLET_SOURCES="{source_digest(library.parent)}"']
    with tempfile.TemporaryDirectory() as scratch:
        variants = known_variants(compiler, machine)
        units = [
            (source, variant, variants[variant].split(), f"{scratch}/{source.stem}_{variant}.o")
            for source in sorted(library.parent.glob("*.cpp"))
            for variant in variants
            if _has_variant(source.stem, variant)
        ]
        commands = [
            [*compiler, *flags, *extra, *defined, f"-DTRIOLET_ISA={variant}", "-c", str(source), "-o", target]
            for source, variant, extra, target in units
        ]
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(_run, commands))
        linked = f"{scratch}/{library.name}"
        _run([*compiler, "-shared", "-Wl,-s", *(target for *_, target in units), "-o", linked])
        # Replaced in one move: a process that has the old library mapped keeps it.
        staged = library.with_suffix(".so.new")
        shutil.copyfile(linked, staged)
        staged.replace(library)
    return library


def source_digest(folder: Path) -> str:
    """Of all that the library and its callers must agree on; the loader computes the same."""
    names = sorted([*folder.glob("*.cpp"), *folder.glob("*.h"), *folder.glob("loader.py")])
    return sha256(b"".join(path.read_bytes() for path in names)).hexdigest()


def known_variants(compiler: list[str], machine: str) -> Mapping[str, str]:
    """Variants for ``machine`` whose instructions the compiler knows: an older one lacks the newest."""
    candidates = X86_VARIANTS if machine in ("x86_64", "AMD64") else {"portable": ""}
    return {name: flags for name, flags in candidates.items() if not flags or _accepts(compiler, flags)}


def _accepts(compiler: list[str], flags: str) -> bool:
    command = [*compiler, *flags.split(), "-x", "c++", "-fsyntax-only", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _has_variant(source: str, variant: str) -> bool:
    if source in ONLY_PORTABLE:
        return variant == "portable"
    return source in WITH_TILES if variant == "amx" else source not in ONLY_TILES


def _find_compiler(environment: Mapping[str, str]) -> list[str]:
    named = shlex.split(environment.get("CXX", ""))
    for candidate in [named] if named else [["g++"], ["c++"], ["clang++"]]:
        if shutil.which(candidate[0], path=environment.get("PATH")):
            return candidate
    raise BuildError(f"no C++ compiler found ({'CXX=' + named[0] if named else 'g++, c++ or clang++'})")


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise BuildError(f"{shlex.join(command)} failed:\n{result.stderr.strip()}")


def get_build_hook() -> type[Any]:
    """Hatchling's entry point."""
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface

    class CompileKernels(BuildHookInterface[Any]):
        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            try:
                compile_library(Path(self.root), os.environ, platform.machine())
            except BuildError as error:
                (Path(self.root) / LIBRARY).unlink(missing_ok=True)
                self.app.display_warning(
                    f"triolet: building WITHOUT the native CPU kernels, which makes it slow on a CPU: {error}"
                )
                return
            build_data["artifacts"].append(LIBRARY)
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_platform_tag()}"

        def clean(self, versions: list[str]) -> None:
            (Path(self.root) / LIBRARY).unlink(missing_ok=True)

    return CompileKernels


def _platform_tag() -> str:
    import sysconfig

    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def main() -> int:
    try:
        library = compile_library(Path(__file__).resolve().parents[1], os.environ, platform.machine())
    except BuildError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{library}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
