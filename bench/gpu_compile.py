"""Compile every GPU kernel in every stored configuration, without a GPU: registers, shared memory, spills.

    python -m bench.gpu_compile
    python -m bench.gpu_compile --architectures sm_90 --match "attention 128" --again

The figures are kept in ``bench/results/gpu_compile``, one file for each architecture; only what has changed
since is compiled. Tests hold the files to the sources and to the limits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from bench.gpu_cases import all_cases
from bench.report import print_table
from triolet_kernels.gpu.configurations import ARCHITECTURES, Configuration, Configurations
from triolet_kernels.gpu.launch import GpuDevice

__all__ = [
    "LIMITS", "RESULTS", "Resources", "Start", "compile_start", "is_current", "main", "read_results",
    "starts_of", "write_results",
]  # fmt: skip

RESULTS = Path(__file__).parent / "results" / "gpu_compile"

LIMITS = {
    # Those that share the tables of sm_80 and sm_89 (sm_86, sm_120) have 99 KiB for a program.
    "sm_80": {"shared_bytes": 99 * 1024, "spilled_bytes": 32},
    "sm_89": {"shared_bytes": 99 * 1024, "spilled_bytes": 32},
    "sm_90": {"shared_bytes": 227 * 1024, "spilled_bytes": 32},
    "gfx942": {"shared_bytes": 64 * 1024, "spilled_bytes": 32},
}
"""What one program may take at most; a thread may spill a handful of registers, out of the inner loop."""

_TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_89": GPUTarget("cuda", 89, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
_TYPES = {
    torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e5m2: "fp8e5", torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8",
    torch.uint8: "u8", torch.bool: "i1", torch.float64: "fp64",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of a kernel, as far as the compiled code depends on it."""

    kernel: Any
    architecture: str
    signature: dict[str, str]
    constants: dict[str, Any]
    aligned: tuple[int, ...]
    configuration: Configuration

    @property
    def digest(self) -> str:
        """Changes with whatever the compiled code is made from, but for the version of Triton."""
        parts = [
            self.architecture, str(self.signature), str(sorted(self.constants.items())), str(self.aligned),
            str(self.configuration.num_warps), str(self.configuration.num_stages), *_sources(self.kernel),
        ]  # fmt: skip
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What the compiled kernel takes: registers of a thread, bytes of memory of a program."""

    registers: int
    shared_bytes: int
    spilled_bytes: int


def _sources(kernel: Any) -> Iterator[str]:
    """The source of a kernel and of what it calls, without comments and spaces."""
    text = re.sub(r'""".*?"""|#[^\n]*|\s', "", kernel.src, flags=re.DOTALL)
    yield text.replace(",)", ")")
    for name in kernel.fn.__code__.co_names:
        called = kernel.fn.__globals__.get(name)
        if isinstance(called, JITFunction) and called.fn.__module__.startswith("triolet_kernels"):
            yield from _sources(called)


def starts_of(architecture: str) -> dict[str, Start]:
    """All starts of all cases, by kernel and case. Needs ``TRITON_INTERPRET`` to be off."""
    found: dict[str, Start] = {}
    case_name = ""

    def record(
        kernel: Any, grid: Sequence[int], configuration: Configuration, *arguments: Any, **constants: Any
    ) -> None:
        name = f"{kernel.fn.__name__.strip('_')}: {case_name}"
        found[name] = _start(kernel, architecture, configuration, arguments, constants)

    configurations = Configurations.load(architecture)
    device = GpuDevice(configurations=configurations, num_multiprocessors=100, launch=record)
    for case_name, start_kernels in all_cases(device):  # noqa: B007  # record reads it
        start_kernels()
    return found


def _start(
    kernel: Any,
    architecture: str,
    configuration: Configuration,
    arguments: Sequence[Any],
    named: dict[str, Any],
) -> Start:
    """Types and constants as Triton makes them of arguments: 1 and None are constants, 16 divides or not."""
    signature: dict[str, str] = {}
    constants = {**named, **configuration.constants}
    aligned = []
    parameters = [parameter for parameter in kernel.params if not parameter.is_constexpr]
    for parameter, value in zip(parameters, arguments, strict=True):
        name = parameter.name
        if value is None or (type(value) is int and value == 1 and not parameter.do_not_specialize):
            constants[name] = value
        elif isinstance(value, torch.Tensor):
            signature[name] = "*" + _TYPES[value.dtype]
            aligned.append(parameter.num)
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name] = "i32" if abs(value) < 2**31 else "i64"
            if value % 16 == 0 and not parameter.do_not_specialize:
                aligned.append(parameter.num)
    names = [parameter.name for parameter in kernel.params]
    assert set(signature) | set(constants) == set(names), set(names) ^ (set(signature) | set(constants))
    return Start(
        kernel=kernel, architecture=architecture, configuration=configuration, aligned=tuple(aligned),
        signature={name: signature.get(name, "constexpr") for name in names}, constants=constants,
    )  # fmt: skip


def compile_start(start: Start) -> Resources:
    """Compile it to machine code, or find it in Triton's cache."""
    source = ASTSource(
        fn=start.kernel,
        signature=start.signature,
        constexprs=start.constants,
        attrs={(index,): [["tt.divisibility", 16]] for index in start.aligned},
    )
    options = {
        "num_warps": start.configuration.num_warps,
        "num_stages": start.configuration.num_stages,
        "enable_fp_fusion": True,
    }
    compiled = triton.compile(source, target=_TARGETS[start.architecture], options=options)
    shared = compiled.metadata.shared
    if "cubin" in compiled.asm:
        return _nvidia_resources(compiled.asm["cubin"], shared)
    text = compiled.asm["amdgcn"]
    spilled = int(_find(r"\.private_segment_fixed_size: (\d+)", text))
    return Resources(
        registers=int(_find(r"\.vgpr_count: +(\d+)", text)), shared_bytes=shared, spilled_bytes=spilled
    )


def _nvidia_resources(cubin: bytes, shared: int) -> Resources:
    """Registers and stack as ``cuobjdump`` reads them: what is spilled lies on the stack."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = int(_find(r"REG:(\d+)", text)), int(_find(r"STACK:(\d+)", text))
    return Resources(registers=registers, shared_bytes=shared, spilled_bytes=stack)


def _find(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found is not None, f"{pattern} is not in the compiler's output"
    return found[1]


def read_results(architecture: str) -> dict[str, dict[str, Any]]:
    """The stored figures, by kernel and case; none where there is no file."""
    path = RESULTS / f"{architecture}.json"
    results: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    return results


def write_results(architecture: str, results: dict[str, dict[str, Any]]) -> None:
    RESULTS.mkdir(exist_ok=True)
    lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(results.items())]
    (RESULTS / f"{architecture}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def is_current(architecture: str) -> bool:
    """Whether the stored figures are those of the sources, the table and the cases as they are."""
    stored = {name: entry["digest"] for name, entry in read_results(architecture).items()}
    return stored == {name: start.digest for name, start in starts_of(architecture).items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile what has changed, store the figures and print them; 1 if asked to check and they are old."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--architectures", nargs="+", default=ARCHITECTURES, choices=ARCHITECTURES)
    parser.add_argument("--match", default="", help="only kernels and cases with this in their names")
    parser.add_argument("--again", action="store_true", help="also what has not changed, and store nothing")
    parser.add_argument("--check", action="store_true", help="only say whether the figures are current")
    options = parser.parse_args(arguments)
    if options.check:
        old = [architecture for architecture in options.architectures if not is_current(architecture)]
        print(f"old: {', '.join(old)}; run python -m bench.gpu_compile" if old else "current")
        return bool(old)
    rows = []
    for architecture in options.architectures:
        for name, resources in _compile_all(architecture, options.match, is_again=options.again):
            rows.append({"architecture": architecture, "kernel": name, **resources})
    print_table(rows, ("architecture", *Resources.__slots__, "kernel"))
    return 0


def _compile_all(architecture: str, match: str, *, is_again: bool) -> Iterator[tuple[str, dict[str, int]]]:
    starts = starts_of(architecture)
    results = {name: entry for name, entry in read_results(architecture).items() if name in starts}
    for name, start in starts.items():
        if match not in name:
            continue
        if is_again:
            yield name, asdict(compile_start(start))
            continue
        if results.get(name, {}).get("digest") != start.digest:
            results[name] = {"digest": start.digest, **asdict(compile_start(start))}
            write_results(architecture, results)
        yield name, results[name]


if __name__ == "__main__":
    sys.exit(main())
