"""``ModelRunner``: a model on a device, ready to execute step plans.

It puts the parts together: weights, KV cache, batch building, sampling. All of it is synchronous and belongs
to one thread, the one that loads: torch's number of threads is set for it there, and set back on close. It
knows nothing of an event loop, of queues or of why the scheduler plans what it plans.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from triolet.args import EngineArgs
from triolet.errors import UsageError
from triolet.models.checkpoint import Checkpoint, open_checkpoint
from triolet.models.loader import load_model
from triolet.models.source import ModelFiles
from triolet.plan import LayerGroup, PlanRow, StepPlan, StepResult
from triolet.request import Request
from triolet.runtime.batch import BatchBuilder
from triolet.runtime.constraints import Constraints
from triolet.runtime.device import choose_device, choose_dtype, choose_num_threads
from triolet.runtime.draft_loading import DraftFit
from triolet.runtime.draft_model import DraftModel
from triolet.runtime.kv_cache import KVCacheConfig, KVCacheTensors, allocate_kv_cache
from triolet.runtime.kv_cache_size import choose_sizes
from triolet.runtime.memory import available_memory
from triolet.runtime.prompt_logprobs import prompt_logprobs
from triolet.runtime.residence import Sources, return_freed_memory
from triolet.runtime.sampler import Sampler
from triolet_kernels.ops import AttentionBatch, Ops, select_ops

__all__ = ["Model", "ModelRunner"]

logger = logging.getLogger("triolet.runtime")

WARM_UP_TOKENS = 64

M = TypeVar("M")


class Model(Protocol):
    """What the runner asks of a model."""

    def forward(
        self, token_ids: Tensor, batches: Sequence[AttentionBatch], kv_cache: KVCacheTensors, rows: Tensor
    ) -> Tensor:
        """``token_ids (T,)`` and ``rows (R,)`` int64 → hidden states ``(R, hidden)`` of those tokens.

        ``batches`` has an entry for each group of layers, ``kv_cache`` one for each layer.
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """``hidden (R, hidden)`` → logits ``(R, vocab)`` float32, the caller's to change."""
        ...


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
        device = choose_device(args)

        def available() -> int:
            return available_memory(device) // num_sharing

        num_threads_before = torch.get_num_threads()
        torch.set_num_threads(choose_num_threads(args))
        try:
            on_phase("loading weights")
            with open_checkpoint(files) as checkpoint:
                runner = cls._load_checkpoint(
                    files, checkpoint, args, device, on_phase, constraints, available
                )
            on_phase("warming up")
            runner.warm_up(min(WARM_UP_TOKENS, args.max_num_batched_tokens))
        except BaseException:
            torch.set_num_threads(num_threads_before)
            raise
        runner._num_threads_before = num_threads_before
        return runner

    @classmethod
    def _load_checkpoint(
        cls,
        files: ModelFiles,
        checkpoint: Checkpoint,
        args: EngineArgs,
        device: torch.device,
        on_phase: Callable[[str], None],
        constraints: Constraints | None,
        available: Callable[[], int],
    ) -> Self:
        config = checkpoint.config
        dtype = choose_dtype(args, device)
        cache_config = KVCacheConfig.of(
            config,
            block_size=args.block_size,
            max_num_batched_tokens=args.max_num_batched_tokens,
            dtype=dtype,
            device=device,
        )

        # A context for which there is no memory even now is refused before anything of its size is made.
        fit = DraftFit.of(args, config, cache_config, on_phase)
        if fit is not None:
            cache_config = fit.share_cache(cache_config)
        num_positions, _ = choose_sizes(args, config, cache_config, available())
        if fit is not None:
            fit.check_context(num_positions)
        ops = _select_ops(args, device)
        load = torch.inference_mode()(load_model)
        read = partial(load, ops=ops, dtype=dtype, device=device, num_positions=num_positions)
        model = read(checkpoint, on_tensor=partial(on_phase, "loading weights"))
        draft = None if fit is None else fit.read(ops, num_positions, on_phase)
        if device.type == "cpu" and not ops.uses_torch_threads:
            torch.set_num_threads(1)
        on_phase("allocating KV cache")
        max_model_len, num_blocks = choose_sizes(args, config, cache_config, available())
        logger.info(
            "model on %s in %s with %s kernels; context %d; KV cache %d MiB, %s blocks of %d tokens",
            device, str(dtype).removeprefix("torch."), ops.name, min(max_model_len, num_positions),
            cache_config.total_bytes(num_blocks) >> 20, " + ".join(map(str, num_blocks)), args.block_size,
        )  # fmt: skip
        allocate = partial(allocate_kv_cache, cache_config, num_blocks)
        return cls(
            model,
            allocate(),
            cache_config.layer_groups(num_blocks),
            vocab_size=config.vocab_size,
            max_model_len=min(max_model_len, num_positions),
            max_num_seqs=args.max_num_seqs,
            device=device,
            sampler=Sampler(
                config.vocab_size, ops=ops, logprobs_mode=args.logprobs_mode, constraints=constraints
            ),
            sources=Sources(partial(_read_again, args, partial(_read_files, files, read)), allocate),
            draft_model=None
            if fit is None or draft is None
            else fit.join(
                draft, ops, num_blocks, partial(_read_again, args, partial(fit.read, ops, num_positions))
            ),
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
        hidden = self._model.forward(batch.token_ids, batch.attention, self._kv_cache, batch.logit_rows)
        indices = [index for index, row in enumerate(plan_rows) if row.is_sampled]
        rows = [plan_rows[index] for index in indices]
        num_sampled = sum(row.num_draft_tokens + 1 for row in rows)
        prompts = prompt_logprobs(hidden[num_sampled:], plan_rows, self._model.logits)
        sampled = self._sampler.sample(hidden[:num_sampled], rows, self._model.logits)
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
        cache = tuple(
            (torch.zeros_like(key[:1]), torch.zeros_like(value[:1])) for key, value in self._kv_cache
        )
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


def _select_ops(args: EngineArgs, device: torch.device) -> Ops:
    is_reference, num_threads = args.kernels == "reference", torch.get_num_threads()
    try:
        return select_ops(device, is_reference=is_reference, num_threads=num_threads)
    except ValueError as error:
        raise UsageError(str(error), param="kernels") from error


def _read_files(files: ModelFiles, read: Callable[[Checkpoint], M]) -> M:
    with open_checkpoint(files) as checkpoint:
        return read(checkpoint)


def _read_again(args: EngineArgs, read: Callable[[], M]) -> M:
    """Weights once more, with as many threads as the first time."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(choose_num_threads(args))
    try:
        return read()
    finally:
        torch.set_num_threads(num_threads)


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
