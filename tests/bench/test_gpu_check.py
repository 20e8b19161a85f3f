"""The script for a machine with a GPU, on one without: it must not be found broken when there is one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from bench.gpu_check import SECONDS, SHARES, main
from bench.gpu_models import MODELS
from bench.gpu_peer import transformers_decode
from bench.gpu_timing import Budget, Figures

from bench import gpu_parts, gpu_timing
from triolet.runtime import cuda

ROOT = Path(__file__).parents[2]

ALLOWED = {"torch", "triton", "numpy"}

NOTHING_ELSE = """
import sys
from importlib.machinery import PathFinder

class Refuse(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in {refused}:
            raise ImportError(name + " is not there")
        return None

sys.meta_path.insert(0, Refuse)
import bench.gpu_check
"""


@pytest.mark.slow
def test_the_dry_run_has_every_part_and_nothing_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for timed in (gpu_timing.seconds_of, gpu_timing.kernel_seconds):
        monkeypatch.setattr(timed, "__kwdefaults__", {"seconds": 0.001})
    output = tmp_path / "gpu_check.json"
    parts = ["ceilings", "equality", "kernels", "models", "sanitizer"]
    # As on a GPU: Triton's interpreter computes with numpy, which warns.
    with np.errstate(all="ignore"):
        assert main(["--device", "cpu", "--output", str(output), "--only", *parts]) == 0
    rows = json.loads(output.read_text())["rows"]
    assert {row["section"] for row in rows} == {*parts, "tiny mixture"} - {"models"}
    assert not [row for row in rows if str(row["value"]).startswith("failed")]
    assert not [row for row in rows if row["section"] == "equality" and row["verdict"] != "ok"]
    assert {"torch", "triton", "commit"} <= json.loads(output.read_text()).keys()
    assert "decode, 2 × 24" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")  # its own, of what it is about to change
def test_the_peer_takes_the_same_shapes() -> None:
    cpu = torch.device("cpu")
    config = MODELS["tiny"]
    assert transformers_decode(config, cpu, torch.float32, batch=2, context=5, num_steps=2) > 0


def test_without_a_gpu_it_says_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "is_available", lambda: False)
    assert main([]) == 2
    assert "there is no GPU: " in capsys.readouterr().out


def test_it_needs_nothing_that_is_not_said_to_be_needed() -> None:
    refused = {
        "tokenizers",
        "safetensors",
        "msgpack",
        "anyio",
        "gguf",
        "jinja2",
        "llguidance",
        "msgspec",
        "quart",
        "hypercorn",
        "trio",
        "sniffio",
        "rich",
    }
    refused |= {"h11", "huggingface_hub", "prometheus_client", "transformers", "werkzeug", "hypothesis"}
    assert not refused & ALLOWED
    subprocess.run(
        [sys.executable, "-c", NOTHING_ELSE.format(refused=refused)],
        cwd=ROOT,
        check=True,
        env={"PYTHONPATH": "src:kernels", "PATH": "/usr/bin"},
    )


def test_it_ends_within_nine_minutes_even_if_every_part_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def hang(command: Sequence[str], seconds: float) -> str:
        nonlocal now
        now += seconds
        return "ended"

    monkeypatch.setattr(gpu_parts, "_run", hang)
    figures = Figures(None, Budget(SECONDS, clock=lambda: now), {})
    gpu_parts.run_apart(figures, SHARES, tmp_path / "out.json", lambda *_: ())
    assert now == pytest.approx(SECONDS)
    assert now < 9 * 60
    assert [(row["section"], row["value"]) for row in figures.rows] == [
        (name, "failed: ended") for name in SHARES
    ]
