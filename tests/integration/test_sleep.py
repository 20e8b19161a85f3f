"""Sleep with the real model: the memory is the system's meanwhile, and requests do not notice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from triolet import LLMEngine, SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.slow]

PROMPTS = ("The capital of France is", "One, two, three,")
MEBIBYTE = 2**20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def start(engine: LLMEngine) -> None:
    for index, prompt in enumerate(PROMPTS):
        params = SamplingParams(max_tokens=12, temperature=0.8 * index, seed=7, logprobs=1, ignore_eos=True)
        engine.add_request(str(index), prompt, params)
    for _ in range(5):
        engine.step()


def finish(engine: LLMEngine) -> dict[str, object]:
    last: dict[str, object] = {}
    while engine.has_unfinished_requests():
        last.update({output.request_id: output.outputs for output in engine.step() if output.is_finished})
    return last


def test_requests_go_on_after_it_as_if_nothing_had_been(smollm2_path: Path) -> None:
    with LLMEngine(model=str(smollm2_path), num_threads=1) as engine:
        start(engine)
        expected = finish(engine)
        start(engine)
        awake = resident_bytes()
        engine.sleep(1, "keep")
        asleep = resident_bytes()
        assert awake - asleep > 80 * MEBIBYTE, "weights are 90 MiB of the file"
        engine.wake_up(["weights"])
        assert resident_bytes() - asleep > 60 * MEBIBYTE
        engine.wake_up(["kv_cache"])
        engine.step()
        engine.sleep(2, "keep")
        assert awake - resident_bytes() > 80 * MEBIBYTE
        engine.wake_up()
        assert finish(engine) == expected
