"""``OverlappedRunner``: a model on a device that computes beside the host.

A step is launched without waiting for anything, and its result is taken later. Sampled tokens stay on the
device, one for each slot, and the next step reads them there, so that it can be launched before anybody has
seen them. Decodes are replayed as graphs; everything else runs as it stands.

One thing waits for the device within a launch: a first use that compiles something. This module knows
nothing of why the scheduler plans what it plans.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from triolet.args import EngineArgs
from triolet.plan import StepPlan, StepResult
from triolet.runtime.accelerator import Device, send_together
from triolet.runtime.constraints import Constraints
from triolet.runtime.cuda import CudaDevice
from triolet.runtime.decode_graphs import DecodeGraphs
from triolet.runtime.device_prompt_logprobs import DevicePromptLogprobs
from triolet.runtime.device_sampling import DeviceSampler, DrawsOnDevice, DrawsUnderWay
from triolet.runtime.loading import LoadedModel, Model
from triolet.runtime.prompt_logprobs import PromptLogprobs
from triolet.runtime.runner import ModelRunner
from triolet.runtime.sampler import SampledRow, Sampler
from triolet.runtime.step_inputs import StepInputs, StepTensors
from triolet_kernels.ops import select_ops

__all__ = ["OverlappedRunner", "StepUnderWay"]

M = TypeVar("M", bound=Model)

NOTHING = -1
"""What is in the slot in which nothing is ever sampled: less than any token."""


class OverlappedRunner(ModelRunner):
    """See :class:`~triolet.runtime.runner.ModelRunner`.

    The KV cache has a block more in each group than ``layer_groups`` say, for rows that mean nothing.
    """

    max_steps_under_way = 2

    def __init__(
        self,
        loaded: LoadedModel[Any],
        args: EngineArgs,
        device: Device,
        constraints: Constraints | None = None,
    ) -> None:
        host = Sampler(
            loaded.vocab_size,
            ops=select_ops(torch.device("cpu"), is_reference=args.kernels == "reference"),
            logprobs_mode=args.logprobs_mode,
            constraints=constraints,
        )
        super().__init__(
            loaded.model,
            loaded.kv_cache,
            loaded.layer_groups,
            vocab_size=loaded.vocab_size,
            max_model_len=loaded.max_model_len,
            max_num_seqs=args.max_num_seqs,
            device=torch.device("cpu"),
            sampler=host,
            sources=loaded.sources,
        )
        assert isinstance(loaded.ops, DrawsOnDevice), "operations on a device draw there"
        self._device = device
        self._empty_slot = args.max_num_seqs
        self._last_token_ids = torch.full((args.max_num_seqs + 1,), NOTHING, device=device.torch_device)
        self._draws = DeviceSampler(
            device,
            loaded.ops,
            host,
            vocab_size=loaded.vocab_size,
            last_token_ids=self._last_token_ids,
            logprobs_mode=args.logprobs_mode,
        )
        self._prompt_logprobs = DevicePromptLogprobs(device, loaded.ops, loaded.vocab_size)
        self._graphs = DecodeGraphs(
            device,
            self._forward,
            max_num_seqs=args.max_num_seqs,
            max_model_len=loaded.max_model_len,
            block_size=self.block_size,
            scratch_blocks=[group.num_blocks for group in loaded.layer_groups],
            empty_slot=self._empty_slot,
        )
        self._under_way: deque[StepUnderWay] = deque()

    @classmethod
    def _of(cls, loaded: LoadedModel[M], args: EngineArgs, constraints: Constraints | None) -> Self:
        return cls(loaded, args, CudaDevice(loaded.device), constraints)

    # ------------------------------------------------------------------ steps

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute a step and wait for it, and for those that were launched before it."""
        while self._under_way:
            self._under_way.popleft().settle()
        return self.launch(plan)()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> StepUnderWay:
        """Give a step to the device; see :class:`triolet.core.runner.OverlappedRunner`.

        What is remembered of a step is written last: until then it can be launched again.
        """
        assert self._model is not None, "the runner is closed or has no weights now"
        assert self._kv_cache, "there is no KV cache now"
        while self._under_way and self._under_way[0].is_settled:
            self._under_way.popleft()
        self._draws.begin(plan.rows)
        batch = self._batch_builder.build(plan.rows)
        inputs = StepInputs.of(batch, plan.rows, self._empty_slot)
        hidden = self._graphs.run(inputs)
        if hidden is None:
            hidden = self._forward(inputs.tensors(send_together(self._device, inputs.arrays())))
        rows = [row for row in plan.rows if row.is_sampled]
        num_sampled = sum(row.num_draft_tokens + 1 for row in rows)
        prompts = self._prompt_logprobs.make(hidden[num_sampled:], plan.rows, self._model.logits)
        draws = self._draws.draw(hidden[:num_sampled], rows, self._model.logits) if rows else None
        step = StepUnderWay(self._finish, plan, batch.errors, prompts, draws)
        if draws is not None:
            self._draws.remember(draws)
        while len(self._under_way) >= self.max_steps_under_way:  # one that nobody took
            self._under_way.popleft().settle()
        self._under_way.append(step)
        return step

    def _forward(self, tensors: StepTensors) -> Tensor:
        assert self._model is not None
        sampled = self._last_token_ids.index_select(0, tensors.token_slots)
        token_ids = torch.maximum(tensors.token_ids, sampled)
        return self._model.forward(token_ids, tensors.attention, self._kv_cache, tensors.logit_rows)

    def _finish(self, step: StepUnderWay) -> StepResult:
        indices = [index for index, row in enumerate(step.plan.rows) if row.is_sampled]
        prompts = step.finish_prompts()
        sampled: list[SampledRow] = [] if step.draws is None else self._draws.finish(step.draws)
        errors = {
            index: entry.error
            for index, entry in zip(indices, sampled, strict=True)
            if entry.error is not None
        }
        return StepResult(
            step_id=step.plan.step_id,
            token_ids=tuple(entry.token_ids for entry in sampled),
            logprobs=tuple(entry.logprobs for entry in sampled),
            errors=errors | prompts.errors | step.errors,
            error_params={
                index: entry.error_param
                for index, entry in zip(indices, sampled, strict=True)
                if entry.error_param is not None
            },
            prompt_logprobs=prompts.logprobs,
        )

    # ------------------------------------------------------------------ the rest

    def release(self) -> None:
        self._device.synchronize()
        self._graphs.clear()
        super().release()

    def restore(self, part: str) -> None:
        super().restore(part)
        self._device.synchronize()

    def close(self) -> None:
        self._graphs.clear()
        super().close()


class StepUnderWay:
    """A step that was launched; calling it waits for its result, which is then kept."""

    def __init__(
        self,
        finish: Callable[[StepUnderWay], StepResult],
        plan: StepPlan,
        errors: dict[int, str],
        finish_prompts: Callable[[], PromptLogprobs],
        draws: DrawsUnderWay | None,
    ) -> None:
        self._finish = finish
        self.plan = plan
        self.errors = errors
        self.finish_prompts = finish_prompts
        self.draws = draws
        self._result: StepResult | None = None
        self._failure: Exception | None = None

    def __call__(self) -> StepResult:
        self.settle()
        if self._failure is not None:
            raise self._failure
        assert self._result is not None
        return self._result

    @property
    def is_settled(self) -> bool:
        return self._result is not None or self._failure is not None

    @torch.inference_mode()
    def settle(self) -> None:
        """Wait for the result, or for what is raised in its place, unless it is there already."""
        if self.is_settled:
            return
        try:
            self._result = self._finish(self)
        except Exception as exc:
            self._failure = exc
        self.draws = None
