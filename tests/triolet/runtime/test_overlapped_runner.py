"""Steps that overlap, on a device with a time of its own, against steps that do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.triolet.runtime.fake_constraints import FakeConstraints
from tests.triolet.runtime.fake_device import FakeDevice
from tests.triolet.runtime.toy_model import (
    BAD_TOKEN,
    TOY_ARGS,
    Near,
    ToyModel,
    alone,
    overlapped_core,
    toy_parts,
)
from torch import Tensor

from triolet.core.engine_core import EngineCore, build_core
from triolet.core.runner import OverlappedRunner
from triolet.plan import StepPlan, StepResult
from triolet.request import FinishReason, LogitsAdjustments, Request, TokenOutput
from triolet.runtime.kv_cache import KVCacheTensors
from triolet.runtime.overlapped_runner import OverlappedRunner as ToyRunner
from triolet_kernels.ops import AttentionBatch


def request(request_id: int, prompt: tuple[int, ...] = (), max_tokens: int = 9, **params: Any) -> Request:
    prompt = prompt or (request_id, 2, 3)
    return Request(request_id=request_id, prompt_token_ids=prompt, max_tokens=max_tokens, seed=5, **params)


def run(core: EngineCore, *requests: Request) -> dict[int, list[TokenOutput]]:
    core.add(*requests)
    outputs: dict[int, list[TokenOutput]] = {}
    while core.has_unfinished:
        for output in core.step():
            outputs.setdefault(output.request_id, []).append(output)
        core.check_integrity()
    return outputs


def said(outputs: list[TokenOutput]) -> tuple[list[int], list[Any], FinishReason | None]:
    """Tokens, their log-probabilities, and how it ended."""
    tokens = [token for output in outputs for token in output.token_ids]
    logprobs = [Near(entry) for output in outputs for entry in output.logprobs or ()]
    return tokens, logprobs, outputs[-1].finish_reason


def of_prompt(outputs: list[TokenOutput]) -> list[Any]:
    return [entry and Near(entry) for output in outputs for entry in output.prompt_logprobs or ()]


REQUESTS: dict[str, Callable[[int], Request]] = {
    "greedy": request,
    "random": lambda number: request(number, temperature=1.0),
    "filtered": lambda number: request(number, temperature=0.8, top_k=5, top_p=0.9, min_p=0.01),
    "logprobs": lambda number: request(number, temperature=1.0, top_k=7, num_logprobs=3),
    "prompt-logprobs": lambda number: request(number, num_prompt_logprobs=1),
    "penalties": lambda number: request(
        number, adjustments=LogitsAdjustments(presence_penalty=1.0, min_tokens=3)
    ),
    "penalties-logprobs": lambda number: request(
        number, num_logprobs=2, adjustments=LogitsAdjustments(repetition_penalty=1.5)
    ),
    "biases": lambda number: request(
        number,
        temperature=1.0,
        adjustments=LogitsAdjustments(
            logit_bias=((4, 3.0), (9, -1.0)),
            banned_sequences=((9,), (7, 4), (1, 2, 3)),
            frequency_penalty=0.3,
        ),
    ),
    "bad-words": lambda number: request(
        number,
        max_tokens=20,
        num_logprobs=1,
        adjustments=LogitsAdjustments(
            banned_sequences=tuple(
                (first, second) for first in range(29) for second in range(first % 3, 29, 3)
            )
        ),
    ),
    "allowed": lambda number: request(
        number,
        stop_token_ids=frozenset((8,)),
        adjustments=LogitsAdjustments(
            allowed_token_ids=(3, 5, 8, 13), min_tokens=4, end_token_ids=frozenset((8,))
        ),
    ),
    "many-logprobs": lambda number: request(
        number, num_logprobs=25, temperature=1.0, adjustments=LogitsAdjustments(presence_penalty=1.0)
    ),
    "long": lambda number: request(number, prompt=(*range(1, 28), number)),
}


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("captures", [True, False], ids=["graphs", "no-graphs"])
def test_what_comes_out_is_what_comes_out_without_overlap(kind: str, captures: bool) -> None:
    requests = [REQUESTS[kind](number) for number in range(3)]
    outputs = run(overlapped_core(FakeDevice(captures=captures)), *requests)
    for item in requests:
        assert said(outputs[item.request_id]) == said(alone(item))
        assert of_prompt(outputs[item.request_id]) == of_prompt(alone(item))


@pytest.mark.parametrize("mode", ["raw", "processed"])
def test_logprobs_modes(mode: Any) -> None:
    kinds = ("logprobs", "penalties-logprobs", "bad-words", "many-logprobs")
    items = [REQUESTS[kind](number) for number, kind in enumerate(kinds)]
    outputs = run(overlapped_core(FakeDevice(), replace(TOY_ARGS, logprobs_mode=mode)), *items)
    for number, item in enumerate(items):
        assert said(outputs[number]) == said(alone(item, logprobs_mode=mode))


def test_all_kinds_together() -> None:
    device = FakeDevice()
    core = overlapped_core(device, replace(TOY_ARGS, max_num_seqs=3))
    requests = [make(number) for number, make in enumerate(REQUESTS.values())]
    outputs = run(core, *requests)
    for item in requests:
        assert said(outputs[item.request_id]) == said(alone(item))
    assert device.num_replays > 0


def test_windows_have_tables_of_their_own() -> None:
    windows = (None, 5)
    core = overlapped_core(FakeDevice(), parts=toy_parts(windows=windows))
    requests = [request(number, max_tokens=25) for number in range(3)]
    outputs = run(core, *requests)
    for item in requests:
        assert said(outputs[item.request_id]) == said(alone(item, windows))


@pytest.mark.parametrize(
    "adjustments", [None, LogitsAdjustments(presence_penalty=0.1, logit_bias=((2, 1.0),))]
)
def test_guesses_are_kept_as_far_as_they_are_right(adjustments: LogitsAdjustments | None) -> None:
    args = replace(TOY_ARGS, speculation="ngram")
    item = request(1, prompt=(1, 2, 1, 2, 1, 2, 1), max_tokens=20, adjustments=adjustments)
    assert said(run(overlapped_core(FakeDevice(), args), item)[1]) == said(alone(item))


def test_an_error_says_what_forbids_every_token() -> None:
    allowed = LogitsAdjustments(allowed_token_ids=(5,), banned_sequences=((5, 5),))
    outputs = run(overlapped_core(FakeDevice()), request(1, adjustments=allowed), request(2))
    expected = alone(request(1, adjustments=allowed))
    assert outputs[1][-1].error == expected[-1].error
    assert outputs[1][-1].error_param == expected[-1].error_param == "allowed_token_ids"
    assert said(outputs[2]) == said(alone(request(2)))


def test_a_grammar_is_followed_from_token_to_token() -> None:
    held = request(1, max_tokens=4, adjustments=LogitsAdjustments(grammar="3|4 5|6 7 8|9"))
    core = overlapped_core(FakeDevice(), constraints=FakeConstraints())
    outputs = run(core, held, request(2))
    assert [
        allowed
        for allowed, token in zip(("34", "56", "7", "89"), said(outputs[1])[0], strict=True)
        if str(token) not in allowed
    ] == []
    assert said(outputs[2]) == said(alone(request(2)))


# --- time ------------------------------------------------------------------------------------------------


def launch_next(core: EngineCore) -> tuple[StepPlan, Callable[[], StepResult]]:
    plan = core.schedule()
    assert plan is not None
    return plan, core.launch(plan)


@pytest.mark.parametrize("kind", ["greedy", "penalties-logprobs", "bad-words", "allowed"])
def test_the_device_always_has_the_next_step_before_it_has_done_the_last(kind: str) -> None:
    device = FakeDevice(step_seconds=1.0)
    core = overlapped_core(device)
    core.add(*(replace(REQUESTS[kind](number), max_tokens=20) for number in range(3)))
    steps = [launch_next(core)]
    while core.has_unfinished:
        with device.no_waits():
            if len(steps) < 2 and (plan := core.schedule()) is not None:
                steps.append((plan, core.launch(plan)))
        is_busy_after = len(steps) == 2
        plan, take = steps.pop(0)
        core.commit(plan, take())
        if is_busy_after:
            assert device.busy_until == device.now + 1.0, "the device has begun the next step"
    assert device.now == len(device.waits), "a second for each step, and none between them"


def test_a_first_launch_waits_for_nothing() -> None:
    device = FakeDevice()
    core = overlapped_core(device)
    core.add(request(1))
    with device.no_waits():
        launch_next(core)
        launch_next(core)
    assert device.now == 0.0


class Quiet(ToyModel):
    """Sees every token alone, and asks torch for no value."""

    def forward(
        self, token_ids: Tensor, batches: Sequence[AttentionBatch], kv_cache: KVCacheTensors, rows: Tensor
    ) -> Tensor:
        return token_ids.float().index_select(0, rows)[:, None]


WAITING = ("item", "tolist", "cpu", "nonzero", "__float__", "__int__", "__bool__", "__index__")
"""Methods of a tensor that wait for a device; ``numpy`` raises there."""


class Asking(Quiet):
    def logits(self, hidden: Tensor) -> Tensor:
        return super().logits(hidden + float(hidden.sum()) * 0)


@pytest.mark.parametrize("model", [Quiet(), Asking()], ids=["quiet", "asking"])
def test_torch_is_asked_for_no_value_in_a_launch(model: Quiet, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the host would wait for on a device, though not on the fake one."""
    args = replace(TOY_ARGS, max_num_seqs=8, max_num_batched_tokens=64)
    core = overlapped_core(FakeDevice(), args, replace(toy_parts(), model=model))
    core.add(*(make(number) for number, make in enumerate(REQUESTS.values())))
    first, second = core.schedule(), core.schedule()
    assert first is not None
    assert second is not None
    asked: list[str] = []

    def noting(name: str) -> Callable[..., Any]:
        method = getattr(Tensor, name)

        def ask(*arguments: Any, **options: Any) -> Any:
            asked.append(name)
            return method(*arguments, **options)

        return ask

    with monkeypatch.context() as patches:
        for name in WAITING:
            patches.setattr(Tensor, name, noting(name))
        takes = [core.launch(first), core.launch(second)]
    assert bool(asked) == isinstance(model, Asking)
    for take in takes:
        take()


def test_no_request_waits_within_a_launch() -> None:
    device = FakeDevice()
    core = overlapped_core(device)
    held = request(2, adjustments=LogitsAdjustments(grammar="3|4 5"))
    core.add(REQUESTS["prompt-logprobs"](1), held, REQUESTS["penalties"](3))
    with device.no_waits():
        plan, take = launch_next(core)
        second, _ = launch_next(core)
    assert [row.request.request_id for row in plan.rows] == [1, 2, 3]
    assert [row.request.request_id for row in second.rows] == [1, 3], "a grammar waits for its token"
    core.commit(plan, take())


# --- ends in flight --------------------------------------------------------------------------------------


def test_a_row_that_is_not_finite_ends_alone_with_a_step_under_way() -> None:
    bad = request(1, prompt=(1, BAD_TOKEN))
    outputs = run(overlapped_core(FakeDevice()), bad, request(2))
    assert outputs[1][-1].error == "the model's logits are not finite"
    assert said(outputs[2]) == said(alone(request(2)))


def test_a_request_aborted_under_way_is_not_heard_of_again() -> None:
    core = overlapped_core(FakeDevice())
    core.add(request(1), request(2))
    steps = [launch_next(core), launch_next(core)]
    core.abort(1)
    outputs = [output for plan, take in steps for output in core.commit(plan, take())]
    assert {output.request_id for output in outputs} == {2}
    assert core.statistics().num_free_blocks < core.statistics().num_blocks
    while core.has_unfinished:
        core.step()
        core.check_integrity()
    assert core.statistics().num_free_blocks == core.statistics().num_blocks


@pytest.mark.parametrize("is_lasting", [False, True])
def test_memory_that_runs_out_in_a_launch(is_lasting: bool) -> None:
    """Once: the step is run again, from the same tokens. Always with one request: it fails alone."""
    device = FakeDevice()
    core = overlapped_core(device)
    items = [request(1), request(2), request(3)]
    core.add(*items)
    steps = [launch_next(core), launch_next(core)]
    outputs = list(core.commit(steps[0][0], steps[0][1]()))
    failures = [1]

    def fail() -> None:
        if is_lasting or failures:
            failures.clear()
            raise torch.OutOfMemoryError("CUDA out of memory")

    device.fail = fail
    third = core.schedule()
    assert third is not None
    take = core.launch(third)
    device.fail = lambda: None
    outputs += core.commit(*((steps[1][0], steps[1][1]())))
    outputs += core.commit(third, take())
    while core.has_unfinished:
        outputs += core.step()
    for item in items:
        own = [output for output in outputs if output.request_id == item.request_id]
        expected = said(alone(item))
        if is_lasting:
            assert own[-1].error is not None
            assert "out of memory" in own[-1].error
            assert said(own)[0] == expected[0][:2]
        else:
            assert said(own) == expected


def test_sleep_gives_graphs_back_and_steps_go_on() -> None:
    device = FakeDevice()
    core = overlapped_core(device)
    item = request(1, max_tokens=20)
    core.add(item)
    outputs = [output for _ in range(6) for output in core.step()]
    core.pause("keep")
    while not core.is_quiet:
        outputs += core.step()
    num_captures = device.num_captures
    core.sleep(1)
    core.wake(None)
    while core.has_unfinished:
        outputs += core.step()
    assert said(outputs) == said(alone(item))
    assert device.num_captures > num_captures, "a graph of the cache that was"


def test_steps_that_nobody_takes_are_not_kept() -> None:
    runner = ToyRunner(toy_parts(), TOY_ARGS, FakeDevice())
    core = build_core(runner, TOY_ARGS)
    core.add(request(1, max_tokens=20))
    plan = core.schedule()
    assert plan is not None
    core.launch(plan)
    core.launch(plan)
    for _ in range(3):
        core.launch(plan)()
    assert len(runner._under_way) <= runner.max_steps_under_way


def test_it_is_a_runner_that_overlaps() -> None:
    core = overlapped_core(FakeDevice())
    assert isinstance(core._runner, OverlappedRunner)
    core._runner.probe()
    core.close()
    core.close()
