"""Whatever comes, leaves and fails while steps overlap, each request gets what it would get alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray
from tests.triolet.runtime.fake_device import FakeDevice
from tests.triolet.runtime.toy_model import BAD_TOKEN, TOY_ARGS, Near, alone, overlapped_core, toy_parts

from triolet.core.engine_core import EngineCore
from triolet.plan import StepPlan, StepResult
from triolet.request import FinishReason, LogitsAdjustments, Request, TokenOutput

PAIRS = tuple((first, (5 * first + 3) % 29) for first in range(0, 28, 3))
"""Bad words of two tokens."""


def upside_down(output: Sequence[int], logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Something that only the host can do."""
    return -logits


PARAMS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"stop_token_ids": frozenset(range(6))},
    {"temperature": 1.0},
    {"temperature": 0.9, "top_k": 5, "num_logprobs": 2},
    {"num_prompt_logprobs": 0},
    {"adjustments": LogitsAdjustments(presence_penalty=1.0, min_tokens=2)},
    {"adjustments": LogitsAdjustments(banned_sequences=((3,), (4, 5), *PAIRS)), "num_logprobs": 1},
    {"adjustments": LogitsAdjustments(repetition_penalty=1.5, logit_bias=((3, 2.0),)), "temperature": 1.0},
    {
        "adjustments": LogitsAdjustments(allowed_token_ids=(3, 5, 8, 13, 21)),
        "stop_token_ids": frozenset((8,)),
    },
    {"adjustments": LogitsAdjustments(processors=(upside_down,))},
)


class OverlapMachine(RuleBasedStateMachine):
    """The real scheduler, core and runner, on a device with a time of its own and a model that is exact."""

    device: FakeDevice
    core: EngineCore
    num_requests = 0

    @initialize(
        max_num_seqs=st.integers(1, 4),
        num_blocks=st.integers(12, 30),
        windows=st.sampled_from([(None,), (None, 5), (3,)]),
        captures=st.booleans(),
        speculation=st.sampled_from(["off", "off", "ngram"]),
        enable_prefix_caching=st.booleans(),
    )
    def start(
        self,
        max_num_seqs: int,
        num_blocks: int,
        windows: Sequence[int | None],
        captures: bool,
        **options: Any,
    ) -> None:
        self.windows = windows
        self.device = FakeDevice(captures=captures)
        args = replace(TOY_ARGS, max_num_seqs=max_num_seqs, **options)
        self.core = overlapped_core(self.device, args, toy_parts(num_blocks, windows))
        self.steps: list[tuple[StepPlan, Callable[[], StepResult]]] = []
        self.requests: dict[int, Request] = {}
        self.outputs: dict[int, list[TokenOutput]] = {}
        self.aborted: set[int] = set()

    @rule(
        prompt=st.lists(st.integers(0, 9) | st.sampled_from([BAD_TOKEN, 1, 2]), min_size=1, max_size=22),
        max_tokens=st.integers(1, 12),
        params=st.sampled_from(PARAMS),
    )
    def add(self, prompt: list[int], max_tokens: int, params: dict[str, Any]) -> None:
        self.num_requests += 1
        request = Request(
            request_id=self.num_requests,
            prompt_token_ids=tuple(prompt),
            max_tokens=max_tokens,
            seed=self.num_requests,
            **params,
        )
        self.core.add(request)
        self.requests[request.request_id] = request

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.requests)))
        if self.core.abort(request_id):
            self.aborted.add(request_id)

    @precondition(lambda self: len(self.steps) < 2)
    @rule()
    def launch(self) -> None:
        """Nothing is waited for, whatever is in the plan."""
        if (plan := self.core.schedule()) is not None:
            with self.device.no_waits():
                self.steps.append((plan, self.core.launch(plan)))

    @precondition(lambda self: len(self.steps) < 2)
    @rule(num_failures=st.integers(1, 12))
    def launch_without_memory(self, num_failures: int) -> None:
        """A few uploads fail: the step is run again, and in parts, and what fails in the end is told."""
        left = [num_failures]

        def fail() -> None:
            left[0] -= 1
            if left[0] >= 0:
                raise torch.OutOfMemoryError("CUDA out of memory")

        if (plan := self.core.schedule()) is not None:
            self.device.fail = fail
            take = self.core.launch(plan)
            self.device.fail = lambda: None
            self.core._num_failed_steps = 0  # whether the device is given up is tested elsewhere
            self.steps.append((plan, take))

    @precondition(lambda self: self.steps)
    @rule()
    def take(self) -> None:
        plan, take_result = self.steps.pop(0)
        for output in self.core.commit(plan, take_result()):
            assert output.request_id not in self.aborted, "an output after the abort"
            own = self.outputs.setdefault(output.request_id, [])
            assert not own or own[-1].finish_reason is None, "an output after the last one"
            own.append(output)
            if output.finish_reason is not None:
                self.check(output.request_id)

    @rule()
    def preempt(self) -> None:
        self.core.reset_prefix_cache(reset_running_requests=True)

    @precondition(lambda self: not self.steps)
    @rule()
    def sleep(self) -> None:
        self.core.pause("keep")
        assert self.core.is_quiet
        self.core.sleep(1)
        self.core.wake(None)

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "core"):
            self.core.check_integrity()

    def check(self, request_id: int) -> None:
        request, outputs = self.requests[request_id], self.outputs[request_id]
        expected = alone(request, self.windows)
        is_failure = outputs[-1].finish_reason is FinishReason.ERROR
        if is_failure and "out of memory" in (outputs[-1].error or ""):
            assert tokens_of(outputs) == tokens_of(expected)[: len(tokens_of(outputs))]
            return
        assert tokens_of(outputs) == tokens_of(expected)
        assert logprobs_of(outputs) == logprobs_of(expected)
        assert outputs[-1].finish_reason is expected[-1].finish_reason
        assert outputs[-1].error == expected[-1].error

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        while self.core.has_unfinished:
            while len(self.steps) < 2 and (plan := self.core.schedule()) is not None:
                self.steps.append((plan, self.core.launch(plan)))
            self.take()
        assert not self.steps
        statistics = self.core.statistics()
        assert statistics.num_free_blocks == statistics.num_blocks
        ended = {request_id for request_id, own in self.outputs.items() if own[-1].finish_reason is not None}
        assert ended | self.aborted == set(self.requests)


def tokens_of(outputs: list[TokenOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def logprobs_of(outputs: list[TokenOutput]) -> list[Any]:
    return [Near(entry) for output in outputs for entry in output.logprobs or ()]


OverlapMachine.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestOverlap = OverlapMachine.TestCase
