"""The kernels compile for GPUs that are not here, within limits, and the stored figures are today's.

Compiling is done in a process of its own, since Triton interprets kernels in this one.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.hygiene.source_files import ROOT

pytest.importorskip("triton")

from bench.gpu_cases import all_cases
from bench.gpu_compile import LIMITS, read_results
from tests.bench.gpu_starts import configurations_used

from triolet_kernels.gpu.configurations import ARCHITECTURES, Configurations


def gpu_compile(*arguments: str) -> str:
    paths = [str(ROOT / "src"), str(ROOT / "kernels"), str(ROOT)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu_compile", *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_cases_use_every_configuration(architecture: str) -> None:
    assert configurations_used(architecture, all_cases) == set(Configurations.load(architecture))


def test_the_stored_figures_are_those_of_the_sources() -> None:
    assert gpu_compile("--check") == "current\n"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_kernel_takes_more_than_there_is_or_spills(architecture: str) -> None:
    for name, entry in read_results(architecture).items():
        assert entry["shared_bytes"] <= LIMITS[architecture]["shared_bytes"], name
        assert entry["spilled_bytes"] <= LIMITS[architecture]["spilled_bytes"], name
        assert 0 < entry["registers"] <= (512 if architecture == "gfx942" else 255), name


@pytest.mark.slow
def test_a_kernel_compiles_to_machine_code_for_every_architecture() -> None:
    lines = gpu_compile("--again", "--match", "silu_mul").splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(ARCHITECTURES)
