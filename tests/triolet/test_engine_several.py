"""Requests with several continuations, searches with several beams, and criteria of the caller's own."""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from tests.fakes import FakeRunner
from tests.triolet.test_engine import delta, held, make

from triolet import BeamSearchParams, FinishReason, RequestOutputKind, SamplingParams
from triolet.errors import EngineGenerateError, OverloadedError
from triolet.plan import StepPlan
from triolet.request import Request

pytestmark = pytest.mark.anyio


def by_seed(request: Request, position: int) -> int:
    """Other letters for each seed."""
    return ord("a") + (position * (request.seed % 10 + 1)) % 26


async def test_whatever_the_kind_they_tell_the_same(byte_model: Path) -> None:
    texts = {}
    async with make(byte_model, FakeRunner(next_token=by_seed)) as engine:
        for kind in RequestOutputKind:
            params = SamplingParams(n=3, seed=7, max_tokens=4, output_kind=kind)
            parts: dict[int, list[str]] = {}
            outputs = [output async for output in engine.generate("abc", params)]
            for completion in (item for output in outputs for item in output.outputs):
                parts.setdefault(completion.index, []).append(completion.text)
            is_delta = kind is RequestOutputKind.DELTA
            texts[kind] = ["".join(parts[index]) if is_delta else parts[index][-1] for index in range(3)]
            assert outputs[-1].num_output_tokens == 12
            assert [output.is_finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
        alone = [
            [output async for output in engine.generate("abc", SamplingParams(seed=seed, max_tokens=4))]
            for seed in (7, 8, 9)
        ]
    assert texts[RequestOutputKind.CUMULATIVE] == [outputs[-1].outputs[0].text for outputs in alone]
    assert len(set(texts[RequestOutputKind.DELTA])) == 3
    assert texts[RequestOutputKind.DELTA] == texts[RequestOutputKind.FINAL_ONLY]
    assert texts[RequestOutputKind.DELTA] == texts[RequestOutputKind.CUMULATIVE]


async def test_a_prompt_is_counted_once_and_so_is_the_request(byte_model: Path) -> None:
    async with make(byte_model) as engine:
        async for _ in engine.generate("abc", SamplingParams(n=4, max_tokens=5)):
            pass
        statistics = engine.statistics()
    assert statistics.outcomes == {"length": 1}
    assert (statistics.num_prompt_tokens, statistics.num_generated_tokens) == (3, 20)


@pytest.mark.parametrize("beams", [None, BeamSearchParams(beam_width=3, max_tokens=50)])
async def test_leaving_frees_everything_within_a_step(
    byte_model: Path, beams: BeamSearchParams | None
) -> None:
    runner = FakeRunner()
    async with make(byte_model, runner) as engine:
        stream = await engine.submit("abc", beams or delta(n=3, max_tokens=400))
        while runner.num_steps < 3:
            await anyio.lowlevel.checkpoint()
        stream.abort()
        assert engine.statistics().scheduler.num_waiting == 0
        async for _ in engine.generate("abc", SamplingParams(max_tokens=1)):
            pass
        scheduler = engine.statistics().scheduler
        assert (scheduler.num_running, scheduler.num_waiting) == (0, 0)
        assert engine.statistics().outcomes == {"abort": 1, "length": 1}


async def test_where_the_queue_has_no_room_for_all_none_is_queued(byte_model: Path) -> None:
    runner = FakeRunner()
    async with make(byte_model, runner, max_num_seqs=1, max_num_queued_requests=3) as engine:
        runner.gate.clear()
        first = await engine.submit("abc")
        await held(runner)
        second = await engine.submit("abc")
        with pytest.raises(OverloadedError):
            await engine.submit("abc", SamplingParams(n=3))
        assert engine.statistics().scheduler.num_waiting == 1
        third = await engine.submit("abc", SamplingParams(n=2))
        runner.gate.set()
        for stream in (first, second, third):
            assert [output async for output in stream][-1].is_finished


async def test_one_that_fails_fails_the_request_and_frees_the_others(byte_model: Path) -> None:
    def fail(plan: StepPlan) -> None:
        if any(row.request.seed == 8 and row.start > 4 for row in plan.rows):
            raise RuntimeError("poison")

    async with make(byte_model, FakeRunner(fail=fail), max_num_seqs=2) as engine:
        with pytest.raises(EngineGenerateError, match="poison"):
            async for _ in engine.generate("abc", SamplingParams(n=3, seed=7, max_tokens=20)):
                pass
        assert engine.statistics().outcomes == {"failed": 1}
        await engine.wait_idle()
        (*_, last) = [output async for output in engine.generate("abc", SamplingParams(max_tokens=2))]
        assert last.outputs[0].text == "de"


async def test_beams_come_best_first(byte_model: Path) -> None:
    async with make(byte_model) as engine:
        output = await engine.beam_search("abc", BeamSearchParams(beam_width=2, max_tokens=3))
        assert engine.statistics().outcomes == {"length": 1}
    first, second = output.outputs
    assert first.text == "def"
    assert first.cumulative_logprob is not None
    assert second.cumulative_logprob is not None
    assert first.cumulative_logprob > second.cumulative_logprob
    assert output.is_finished


async def test_a_stop_criterion_of_ones_own(byte_model: Path) -> None:
    async with make(byte_model) as engine:
        params = SamplingParams(max_tokens=50, stop_criteria=(lambda ids, text: text.endswith("gh"),))
        (*_, last) = [output async for output in engine.generate("abc", params)]
        assert (last.outputs[0].text, last.outputs[0].finish_reason) == ("defgh", FinishReason.STOP)
        failing = params.replace(stop_criteria=(lambda ids, text: 1 / 0,))
        with pytest.raises(EngineGenerateError, match="ZeroDivisionError"):
            async for _ in engine.generate("abc", failing):
                pass
        scheduler = engine.statistics().scheduler
        assert (scheduler.num_running, scheduler.num_waiting) == (0, 0)
