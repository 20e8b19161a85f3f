"""``ModelRunner``: a model on a device, ready to execute step plans.

It puts the parts together: weights, KV cache, batch building, sampling. All of it is synchronous and belongs
to one thread, the one that loads: torch's number of threads is set for it there, and set back on close. It
knows nothing of an event loop, of queues or of why the scheduler plans what it plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Self, TypeVar

import numpy as np
import torch

from triolet.args import EngineArgs
from triolet.models.decoder import Decoder
from triolet.models.source import ModelFiles
from triolet.plan import LayerGroup, PlanRow, StepPlan, StepResult
from triolet.request import Request
from triolet.runtime.adjuster import NOT_FINITE
from triolet.runtime.batch import BatchBuilder, StepBatch
from triolet.runtime.constraints import Constraints
from triolet.runtime.draft_model import DraftModel
from triolet.runtime.draw_settings import StepSettings
from triolet.runtime.kv_cache import KVCacheTensors, scratch_cache
from triolet.runtime.loading import LoadedModel, Model, load_parts
from triolet.runtime.prompt_logprobs import PromptLogprobs, prompt_logprobs
from triolet.runtime.residence import Sources, return_freed_memory, trim_allocator
from triolet.runtime.sampler import SampledRow, Sampler, are_only_drawn, sampled_rows
from triolet_kernels.ops import DrawnTokens

__all__ = ["ModelRunner"]

WARM_UP_TOKENS = 64

M = TypeVar("M", bound=Model)


class ModelRunner:
    """Executes plans one after the other. :meth:`load` makes one from files; :meth:`close` ends it.

    ``layer_groups`` and ``block_size`` (tokens) are those of the KV cache; ``max_model_len`` is the longest
    sequence in tokens.
    """

    def __init__(
        self,
        model: Model,
        kv_cache: KVCacheTensors,
        layer_groups: tuple[LayerGroup, ...],
        *,
        vocab_size: int,
        max_model_len: int,
        max_num_seqs: int,
        device: torch.device,
        sampler: Sampler | None = None,
        sources: Sources[Model, KVCacheTensors] | None = None,
        draft_model: DraftModel | None = None,
    ) -> None:
        """``sampler`` None is one for ``vocab_size`` with everything as usual."""
        self.block_size = kv_cache[0][0].shape[2]
        self.layer_groups = layer_groups
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self._model: Model | None = model
        self._kv_cache = kv_cache
        self._sources = sources
        self._draft_model = draft_model
        self._num_threads_before: int | None = None
        self._sampler = sampler or Sampler(vocab_size)
        self._settings = StepSettings()
        self._batch_builder = BatchBuilder(
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            block_size=self.block_size,
            vocab_size=vocab_size,
            device=device,
            num_groups=len(layer_groups),
        )

    @classmethod
    def load(
        cls,
        files: ModelFiles,
        args: EngineArgs,
        on_phase: Callable[[str], None],
        constraints: Constraints | None = None,
        num_sharing: int = 1,
    ) -> Self:
        """Load a model and try it out, telling ``on_phase`` what is being done.

        The phase is told again with every tensor; what is raised there ends the loading. ``constraints``
        follow the grammars of requests; without them such requests fail. ``num_sharing`` engines share the
        memory of the device.

        Raises :class:`UsageError` for options that do not go with the machine or the model, and
        :class:`ModelLoadError` for files that cannot be used.
        """
        load = partial(load_parts, files, args, on_phase, num_sharing=num_sharing)
        return cls._start(load, args, on_phase, constraints)

    @classmethod
    def _start(
        cls,
        load: Callable[[], LoadedModel[M]],
        args: EngineArgs,
        on_phase: Callable[[str], None],
        constraints: Constraints | None,
    ) -> Self:
        """Load, and try it out."""
        num_threads_before = torch.get_num_threads()
        try:
            runner = cls._of(load(), args, constraints)
            trim_allocator()  # tensors were repacked one by one
            on_phase("warming up")
            runner.warm_up(min(WARM_UP_TOKENS, args.max_num_batched_tokens))
        except BaseException:
            torch.set_num_threads(num_threads_before)
            raise
        runner._num_threads_before = num_threads_before
        return runner

    @classmethod
    def _of(cls, loaded: LoadedModel[M], args: EngineArgs, constraints: Constraints | None) -> Self:
        """One of what has been loaded."""
        return cls(
            loaded.model,
            loaded.kv_cache,
            loaded.layer_groups,
            vocab_size=loaded.vocab_size,
            max_model_len=loaded.max_model_len,
            max_num_seqs=args.max_num_seqs,
            device=loaded.device,
            sampler=Sampler(
                loaded.vocab_size, ops=loaded.ops, logprobs_mode=args.logprobs_mode, constraints=constraints
            ),
            sources=loaded.sources,
            draft_model=loaded.draft_model,
        )

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Run one forward pass and sample. Plans are executed in the order in which they were made.

        What is wrong with one row only is in the result's ``errors``; its token is then 0 and means nothing.
        """
        assert self._model is not None, "the runner is closed or has no weights now"
        assert self._kv_cache, "there is no KV cache now"
        self._sampler.begin(plan.rows)
        plan_rows = plan.rows
        if self._draft_model is not None:
            plan_rows = self._draft_model.complete(plan_rows, self._batch_builder)
        batch = self._batch_builder.build(plan_rows)
        indices = [index for index, row in enumerate(plan_rows) if row.is_sampled]
        rows = [plan_rows[index] for index in indices]
        if isinstance(self._model, Decoder) and rows and are_only_drawn(plan_rows):
            inputs = batch.token_ids, batch.attention, self._kv_cache, batch.logit_rows
            drawn = self._model.draw(*inputs, self._settings.of(rows))
            if len(drawn.token_ids) == len(rows):
                return self._single_tokens(plan.step_id, batch, drawn, indices, rows)
            sampled, prompts = sampled_rows(rows, drawn), PromptLogprobs()
        else:
            sampled, prompts = self._run_model(batch, plan_rows, rows)
        self._batch_builder.remember(
            [row.slot for row in rows], np.array([entry.token_ids[-1] for entry in sampled], dtype=np.int64)
        )
        errors = {
            index: entry.error
            for index, entry in zip(indices, sampled, strict=True)
            if entry.error is not None
        }
        return StepResult(
            step_id=plan.step_id,
            token_ids=tuple(entry.token_ids for entry in sampled),
            logprobs=tuple(entry.logprobs for entry in sampled),
            errors=errors | prompts.errors | batch.errors,
            error_params={
                index: entry.error_param
                for index, entry in zip(indices, sampled, strict=True)
                if entry.error_param is not None
            },
            prompt_logprobs=prompts.logprobs,
        )

    def _single_tokens(
        self,
        step_id: int,
        batch: StepBatch,
        drawn: DrawnTokens,
        indices: Sequence[int],
        rows: Sequence[PlanRow],
    ) -> StepResult:
        """The result of a step of which nothing is wanted but a token after each of ``rows``, at ``indices``.

        Nothing is made for a single row: most steps are such, and the device waits meanwhile.
        """
        is_finite = np.isfinite(drawn.highest)
        errors = dict(batch.errors)
        if not is_finite.all():
            errors = {indices[row]: NOT_FINITE for row in np.flatnonzero(~is_finite).tolist()} | errors
        token_ids = np.where(is_finite, drawn.token_ids, 0)
        self._batch_builder.remember([row.slot for row in rows], token_ids)
        return StepResult(
            step_id=step_id,
            token_ids=tuple(zip(token_ids.tolist(), strict=True)),
            logprobs=(None,) * len(rows),
            errors=errors,
        )

    def _run_model(
        self, batch: StepBatch, plan_rows: Sequence[PlanRow], rows: Sequence[PlanRow]
    ) -> tuple[list[SampledRow], PromptLogprobs]:
        """What is sampled after ``rows``, and what of the prompts of all rows was asked for."""
        assert self._model is not None
        inputs = batch.token_ids, batch.attention, self._kv_cache, batch.logit_rows
        hidden = self._model.forward(*inputs)
        num_sampled = sum(row.num_draft_tokens + 1 for row in rows)
        prompts = prompt_logprobs(hidden[num_sampled:], plan_rows, self._model.logits)
        return self._sampler.sample(hidden[:num_sampled], rows, self._model.logits), prompts

    def warm_up(self, num_tokens: int) -> None:
        """Run a prefill of up to ``num_tokens`` and a decode step, so that the first request need not wait.

        What they leave in the KV cache and in slot 0 is never read: a sequence writes before it reads.
        """
        num_blocks = min(group.num_blocks for group in self.layer_groups)
        num_tokens = min(num_tokens, self.max_model_len - 1, num_blocks * self.block_size - 1)
        block_ids = (tuple(range(-(-(num_tokens + 1) // self.block_size))),) * len(self.layer_groups)
        request = Request(
            request_id=0, prompt_token_ids=(0,) * num_tokens, max_tokens=1, seed=0, temperature=1.0
        )
        if num_tokens:
            self.execute(_plan(request, start=0, token_ids=request.prompt_token_ids, block_ids=block_ids))
        self.execute(_plan(request, start=num_tokens, token_ids=(0,), block_ids=block_ids))

    @torch.inference_mode()
    def probe(self) -> None:
        """Run a token through the model with a KV cache of its own; raises what that raises.

        Nothing is changed that sequences have, so it may be done at any time between steps.
        """
        assert self._model is not None, "the runner is closed or has no weights now"
        cache = scratch_cache(self._kv_cache)
        request = Request(request_id=0, prompt_token_ids=(0,), max_tokens=1, seed=0)
        block_ids = ((0,),) * len(self.layer_groups)
        builder = BatchBuilder(
            max_num_seqs=1,
            max_model_len=self.block_size,
            block_size=self.block_size,
            vocab_size=self.vocab_size,
            device=cache[0][0].device,
            num_groups=len(self.layer_groups),
        )
        batch = builder.build(_plan(request, start=0, token_ids=(0,), block_ids=block_ids).rows)
        hidden = self._model.forward(batch.token_ids, batch.attention, cache, batch.logit_rows)
        self._model.logits(hidden).cpu()

    def release(self) -> None:
        """Give the memory of weights and KV cache back to the system; all that was in the cache is gone."""
        self._model = None
        self._kv_cache = ()
        if self._draft_model is not None:
            self._draft_model.release()
        return_freed_memory()

    def restore(self, part: str) -> None:
        """Have ``weights`` or ``kv_cache`` again, if they are not there. Raises :class:`ModelLoadError`."""
        assert self._sources is not None, "the runner was not loaded from files"
        if part == "weights" and self._model is None:
            self._model = self._sources.load_model()
        elif part == "kv_cache" and not self._kv_cache:
            self._kv_cache = self._sources.allocate_kv_cache()
        if self._draft_model is not None:
            self._draft_model.restore(part)

    def close(self) -> None:
        """Give weights, KV cache and torch's number of threads back. May be called twice."""
        self._model = None
        self._kv_cache = ()
        self._draft_model = None
        if self._num_threads_before is not None:
            torch.set_num_threads(self._num_threads_before)
            self._num_threads_before = None


def _plan(
    request: Request, *, start: int, token_ids: Sequence[int], block_ids: tuple[tuple[int, ...], ...]
) -> StepPlan:
    row = PlanRow(
        request=request,
        slot=0,
        start=start,
        num_tokens=len(token_ids),
        token_ids=tuple(token_ids),
        first_new_block=0,
        new_block_ids=block_ids,
        is_sampled=True,
    )
    return StepPlan(step_id=0, rows=(row,))
