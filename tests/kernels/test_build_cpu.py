"""Compiling the kernels: which compiler, which variants, and what is said when it does not work."""

from __future__ import annotations

from pathlib import Path

import pytest

from build_cpu import LIBRARY, X86_VARIANTS, BuildError, compile_library, known_variants


def make_compiler(folder: Path, script: str) -> str:
    compiler = folder / "compiler"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    return str(compiler)


def test_all_variants_on_x86_and_one_elsewhere(tmp_path: Path) -> None:
    compiler = [make_compiler(tmp_path, "exit 0")]
    assert list(known_variants(compiler, "x86_64")) == ["amx", "avx512", "avx2", "portable"]
    assert list(known_variants(compiler, "aarch64")) == ["portable"]


def test_an_older_compiler_leaves_out_what_it_does_not_know(tmp_path: Path) -> None:
    compiler = [make_compiler(tmp_path, 'case "$*" in *-mamx*|*-mavx512bf16*) exit 1;; esac')]
    assert list(known_variants(compiler, "x86_64")) == ["avx2", "portable"]


@pytest.mark.parametrize("environment", [{"CXX": "/nonexistent"}, {"PATH": "/nonexistent"}])
def test_no_compiler_is_an_error_that_names_what_was_looked_for(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(BuildError, match=r"no C\+\+ compiler found \((CXX=/nonexistent|g\+\+.*)\)"):
        compile_library(tmp_path, environment, "x86_64")


def test_a_failing_compiler_is_quoted(tmp_path: Path) -> None:
    sources = tmp_path / "kernels/triolet_kernels/cpu"
    sources.mkdir(parents=True)
    (sources / "norm.cpp").touch()
    compiler = make_compiler(tmp_path, 'case "$*" in *-c*) echo out of ideas >&2; exit 3;; esac')
    with pytest.raises(BuildError, match="out of ideas"):
        compile_library(tmp_path, {"CXX": f"{compiler} -q"}, "x86_64")
    assert not list(sources.glob("*.so*"))


def test_all_that_variants_are_compiled_for_is_looked_for_on_the_cpu() -> None:
    source = (Path(__file__).parents[2] / LIBRARY).with_name("cpuid.cpp").read_text().lower()
    extensions = {flag.removeprefix("-m") for flags in X86_VARIANTS.values() for flag in flags.split()}
    # One bit stands for each of these.
    by_bit = {"avx512fp16": "avx512-fp16", "amx-tile": "registers", "amx-bf16": "bf16"}
    assert [name for name in extensions if by_bit.get(name, name) not in source] == []
