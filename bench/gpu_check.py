"""Everything that can only be said with a GPU, in one run of less than nine minutes.

    PYTHONPATH=src:kernels python -m bench.gpu_check --output gpu_check.json
    TRITON_INTERPRET=1 PYTHONPATH=src:kernels python -m bench.gpu_check --device cpu   # that it runs, no more

It needs torch, triton and numpy, and no network: weights are random, of real shapes. Each part has a process
of its own, and a row is on disk as soon as it is known. In order: the ceilings of the machine, equality with
the reference, kernels beside the ceilings, decodes and prefills of whole models beside the roofline, how long
the device has nothing to do between steps, and ``transformers`` on the same shapes where it is
installed. Goals are those of docs/how-to/gpu.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.gpu_ceilings import measure_ceilings
from bench.gpu_kernels import equality, measure_kernels
from bench.gpu_models import MODELS, Batch, RandomModel, num_parameters
from bench.gpu_parts import run_apart
from bench.gpu_peer import transformers_decode
from bench.gpu_timing import Budget, Figures
from bench.report import machine
from triolet.plan import StepResult
from triolet.request import LogitsAdjustments
from triolet.runtime import cuda
from triolet.runtime.overlapped_runner import OverlappedRunner
from triolet_kernels.ops import Ops, select_ops

__all__ = ["SECONDS", "SHARES", "Check", "about", "busy_share", "command_of", "main", "run_here", "run_steps"]

SECONDS = 520.0
SHARES = {
    "ceilings": 0.12,
    "equality": 0.2,
    "kernels": 0.22,
    "models": 0.32,
    "transformers": 0.09,
    "sanitizer": 0.05,
}
"""Of the time; what a part leaves the next ones have."""

DECODE_GOAL, PREFILL_GOAL, BUSY_GOAL, PEER_GOAL = 0.8, 0.6, 0.95, 5.0
GOAL_BATCH = 64
ADJUSTED = ((64, 512), (2, 24))
"""Batch and context of decodes that are run again with all that is done to logits: on a GPU, and without."""
NO_CACHE = "PYTORCH_NO_CUDA_MEMORY_CACHING"
PEER_BATCHES = (1, 64)


class Check:
    """The parts, on one device."""

    def __init__(self, figures: Figures, device: torch.device) -> None:
        self.figures = figures
        self.device = device
        self.is_tiny = device.type == "cpu"
        self.dtype = torch.float32 if self.is_tiny else torch.bfloat16
        self.ops: Ops = _interpreted_ops() if self.is_tiny else select_ops(device)
        known = figures.about
        self.ceilings: tuple[float, float] = tuple(known.setdefault("ceilings", (math.nan, math.nan)))
        self.decode_seconds: dict[str, float] = known.setdefault("decode_seconds", {})

    def run(self, only: Sequence[str]) -> None:
        parts: dict[str, Callable[[], None]] = {
            "ceilings": self.measure_ceilings,
            "equality": self.check_equality,
            "kernels": self.measure_kernels,
            "models": self.measure_models,
            "transformers": self.measure_peer,
            "sanitizer": self.sanitize,
        }
        for name, part in parts.items():
            if not only or name in only:
                with self.figures.section(name) as has_time:
                    if has_time:
                        part()
                    self._free()

    def _free(self) -> None:
        gc.collect()  # a model and where it came from know each other
        cuda.release_cached_memory()

    def measure_ceilings(self) -> None:
        self.ceilings = measure_ceilings(self.figures, self.device, self.dtype, is_tiny=self.is_tiny)
        self.figures.about["ceilings"] = self.ceilings
        self.figures.write()

    def check_equality(self) -> None:
        equality(self.figures, self.ops, self.device, self.dtype, is_tiny=self.is_tiny)
        reference = select_ops(self.device, is_reference=True)
        for name, ops in {"kernels": self.ops, "reference": reference}.items():
            for tiny in ("tiny mixture",) if self.is_tiny else ("tiny", "tiny mixture"):
                with self.figures.section("equality"):
                    self._compare_tokens(f"{name}, {tiny}", self._model(MODELS[tiny], 2**22, ops=ops))

    def _compare_tokens(self, name: str, model: RandomModel) -> None:
        """Three sequences, of which a graph computes four: in the ways in which they may be run."""
        prompts = [[7, 3, 11, 200, 45, 8], [5] * 40, [9, 1]]
        num_tokens = 2 if self.device.type == "cpu" else 48
        captures = NO_CACHE not in os.environ  # which graphs cannot do without
        tokens = model.generate(prompts, num_tokens, captures=captures)
        others = {
            "with overlap": model.generate(prompts, num_tokens, overlaps=False, captures=captures),
        }
        if self.device.type != "cpu":
            others["from graphs"] = model.generate(prompts, num_tokens, captures=False)
        for way, expected in others.items():
            same = tokens == expected
            self.figures.add("equality", f"tokens {way}, {name}", str(same), share=float(same), goal=1.0)

    def measure_kernels(self) -> None:
        measure_kernels(self.figures, self.ops, self.device, self.dtype, self.ceilings, is_tiny=self.is_tiny)

    # ------------------------------------------------------------------ whole models

    def measure_models(self) -> None:
        names = ["Qwen3 4B", "Llama 3 8B", "a quarter of Qwen3 30B A3B"]
        names = ["tiny mixture"] if self.is_tiny else names
        for index, name in enumerate(names):
            with self.figures.section("models", at_least=40.0 if not self.is_tiny else 0.0) as has_time:
                if has_time:
                    # Each model has what those before have left of the time.
                    self._measure_model(name, until=(0.5, 0.25, 0.03)[index])
                self._free()

    def _model(self, config: Any, cache_bytes: int, *, ops: Ops | None = None) -> RandomModel:
        return RandomModel(
            config,
            ops or self.ops,
            self.device,
            dtype=self.dtype,
            cache_bytes=cache_bytes,
            max_num_seqs=8 if self.is_tiny else 256,
            max_num_batched_tokens=64 if self.is_tiny else 4096,
        )

    def _measure_model(self, name: str, until: float) -> None:
        started = time.perf_counter()
        config = MODELS[name]
        cache_bytes = 2**22
        if not self.is_tiny:
            free, _ = cuda.memory_of(self.device)
            cache_bytes = max(2**30, int(0.85 * free) - 2 * 2 * num_parameters(config))
        model = self._model(config, cache_bytes)
        self.figures.add(name, "random weights and cache made", time.perf_counter() - started, "s")
        runner = model.runner()
        contexts, batches = ([24], [1, 2]) if self.is_tiny else ([512, 4096, 32768], [1, 8, 64, 256])
        with self.figures.section(name, at_least=0.0):
            self._measure_prefill(name, model, runner)
        for context in contexts:
            for size in batches:
                if self.figures.budget.left < until * self.figures.budget.seconds and not self.is_tiny:
                    self.figures.add(name, f"decode, {size} × {context}", "left out: no time is left")
                elif size * (context + 256) > model.num_blocks * 32:
                    self.figures.add(name, f"decode, {size} × {context}", "left out: it does not fit")
                else:
                    with self.figures.section(name, at_least=0.0):
                        self._measure_decode(name, model, runner, size, context)
        runner.close()

    def _measure_prefill(self, name: str, model: RandomModel, runner: OverlappedRunner) -> None:
        num_tokens = 48 if self.is_tiny else 4096
        plan = model.prefill_plan(num_tokens)
        runner.launch(plan)()
        taken = []
        for _ in range(3):
            started = time.perf_counter()
            runner.launch(plan)()
            taken.append(time.perf_counter() - started)
        config, seconds = model.config, sorted(taken)[1]
        operations = 2 * num_tokens * (num_parameters(config, 1) - config.vocab_size * config.hidden_size)
        operations += 2 * config.num_layers * config.num_heads * config.head_dim * num_tokens**2
        share = operations / seconds / self.ceilings[1]
        case = f"prefill of {num_tokens}"
        self.figures.add(name, case, num_tokens / seconds, "tok/s", share=share, goal=PREFILL_GOAL)

    def _measure_decode(
        self, name: str, model: RandomModel, runner: OverlappedRunner, size: int, context: int
    ) -> None:
        batch = Batch(size, context, model.num_blocks)
        run_steps(runner, batch, 2)
        num_steps = 2 if self.is_tiny else 48
        started = time.perf_counter()
        in_launch = run_steps(runner, batch, num_steps)
        seconds = (time.perf_counter() - started) / num_steps
        num_bytes = model.weight_bytes_of(size) + model.cache_bytes_of(size, context)
        share = num_bytes / self.ceilings[0] / seconds
        goal = DECODE_GOAL if size <= GOAL_BATCH else None
        case = f"decode, {size} × {context}"
        more = {"ms": 1e3 * seconds, "launch_ms": 1e3 * in_launch / num_steps}
        self.figures.add(name, case, size / seconds, "tok/s", share=share, goal=goal, **more)
        self.decode_seconds.setdefault(f"{name}, {size}", seconds)
        if (size, context) in ADJUSTED:
            with self.figures.section(name, at_least=0.0):
                self._measure_adjusted(name, model, runner, size, context)
        if not self.is_tiny and context == 512:
            with self.figures.section(name, at_least=0.0):
                busy = busy_share(lambda: run_steps(runner, batch, 12))
                case = f"{case}: device busy"
                self.figures.add(name, case, 1e3 * seconds, "ms", share=busy, goal=BUSY_GOAL)

    def _measure_adjusted(
        self, name: str, model: RandomModel, runner: OverlappedRunner, size: int, context: int
    ) -> None:
        """What penalties, a bias and log-probabilities add to a step."""
        adjustments = LogitsAdjustments(presence_penalty=0.5, repetition_penalty=1.1, logit_bias=((7, -1.0),))
        asking = {"adjustments": adjustments, "num_logprobs": 5, "temperature": 0.7, "top_p": 0.9}
        batch = Batch(size, context, model.num_blocks, asking=asking)
        run_steps(runner, batch, 2)
        num_steps = 2 if self.is_tiny else 24
        started = time.perf_counter()
        run_steps(runner, batch, num_steps)
        seconds = (time.perf_counter() - started) / num_steps
        share = self.decode_seconds[f"{name}, {size}"] / seconds
        case = f"decode, {size} × {context}: adjusted"
        self.figures.add(name, case, size / seconds, "tok/s", share=share, ms=1e3 * seconds)

    # ------------------------------------------------------------------ others

    def measure_peer(self) -> None:
        name = "tiny" if self.is_tiny else "Qwen3 4B"
        for size in (1,) if self.is_tiny else PEER_BATCHES:
            context, num_steps = (24, 3) if self.is_tiny else (512, 16)
            try:
                seconds = transformers_decode(
                    MODELS[name], self.device, self.dtype, batch=size, context=context, num_steps=num_steps
                )
            except ImportError:
                self.figures.add("transformers", "-", "not installed")
                return
            self._free()
            own = self.decode_seconds.get(f"{name}, {size}")
            times = None if own is None else seconds / own
            goal = PEER_GOAL if size > 1 else None
            case = f"{name}, decode, {size} × {context}; times as fast"
            self.figures.add("transformers", case, size / seconds, "tok/s", share=times, goal=goal)

    def sanitize(self) -> None:
        """compute-sanitizer over the small equality cases, where it is there."""
        tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        if self.is_tiny or not Path(tool).exists():
            self.figures.add("sanitizer", "-", "not there")
            return
        script = [sys.executable, "-m", "bench.gpu_check", "--only", "equality", "--tiny", "--seconds", "60"]
        command = [tool, "--tool", "memcheck", "--error-exitcode", "9", *script]
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [*command, "--output", f"{folder}/sanitizer.json"],
                # Each tensor in memory of its own, or what lies beside it would do as well.
                env={**os.environ, NO_CACHE: "1"},
                capture_output=True,
                text=True,
                timeout=max(5.0, self.figures.budget.left - 5),
                check=False,
            )
        right = done.returncode == 0
        last = done.stdout.strip().splitlines()[-1:] or [""]
        self.figures.add("sanitizer", "memcheck", last[0][:100], share=float(right), goal=1.0)


def _interpreted_ops() -> Ops:
    """Kernels of a GPU on a CPU, where Triton's interpreter was asked for; without it the reference."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return select_ops(torch.device("cpu"), is_reference=True)
    from triolet_kernels.gpu import GpuOps
    from triolet_kernels.gpu.configurations import Configurations
    from triolet_kernels.gpu.launch import GpuDevice

    return GpuOps(GpuDevice(configurations=Configurations.load("sm_90"), num_multiprocessors=4))


def run_steps(runner: OverlappedRunner, batch: Batch, num_steps: int) -> float:
    """Steps as the engine runs them, with the next one launched before the last is taken; → seconds in
    launches."""
    under_way: list[Callable[[], StepResult]] = []
    in_launch = 0.0
    for _ in range(num_steps):
        plan = batch.plan()
        started = time.perf_counter()
        under_way.append(runner.launch(plan))
        in_launch += time.perf_counter() - started
        if len(under_way) == runner.max_steps_under_way:
            under_way.pop(0)()
    for take in under_way:
        take()
    return in_launch


def busy_share(function: Callable[[], object]) -> float:
    """The share of the time from the first kernel to the last in which any kernel ran."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        function()
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profiled.events()
        if "CUDA" in str(event.device_type) and event.time_range.end > event.time_range.start
    )
    if not spans:
        raise RuntimeError("the profiler saw no kernel")
    busy, reached = 0.0, spans[0][0]
    for start, end in spans:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return float(busy / (reached - spans[0][0]))


def about(device: torch.device) -> dict[str, Any]:
    """What the figures are of."""
    import triton

    facts: dict[str, Any] = {"torch": torch.__version__, "triton": triton.__version__, "device": str(device)}
    # Triton builds what starts its kernels where it first does.
    facts["compiler"] = (
        os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    )
    with suppress(OSError):  # a machine without git
        facts |= machine()
    if device.type != "cpu":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "gpu": properties.name,
            "memory": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "cuda": torch.version.cuda,
            "hip": torch.version.hip,
        }
    return facts


def command_of(options: argparse.Namespace, part: str, seconds: float, output: Path) -> list[str]:
    """What runs one part, for so long, and knows what the earlier ones have found."""
    script = [sys.executable, "-m", "bench.gpu_check", "--device", options.device, "--only", part]
    files = ["--known", str(options.output), "--output", str(output)]
    return [*script, "--seconds", f"{seconds:.1f}", *files, *(["--tiny"] if options.tiny else [])]


def run_here(figures: Figures, device: torch.device, options: argparse.Namespace) -> None:
    """Run the parts that were asked for, in this process."""
    check = Check(figures, device)
    check.is_tiny = check.is_tiny or options.tiny
    with torch.inference_mode():
        check.run(options.only)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--output", type=Path, default=Path("gpu_check.json"), help="JSON, written anew with every row"
    )
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--only", nargs="*", default=(), help="parts to run")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes on a GPU too")
    parser.add_argument("--known", type=Path, help="JSON: what earlier parts have found")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not cuda.is_available():
        print(f"there is no GPU: {cuda.why_unavailable()}; --device cpu shows that the script runs")
        return 2
    device = torch.device(options.device)
    if options.known is not None:
        known = json.loads(options.known.read_text())
        figures = Figures(options.output, Budget(options.seconds), known | {"rows": []})
        run_here(figures, device, options)
        return 0
    figures = Figures(options.output, Budget(options.seconds), about(device))
    if options.only:
        run_here(figures, device, options)
    else:
        figures.write()
        run_apart(figures, SHARES, options.output, partial(command_of, options))
    print("\n" + "  ".join(f"{name}: {value}" for name, value in figures.about.items()))
    figures.print_table()
    return 0


if __name__ == "__main__":
    sys.exit(main())
