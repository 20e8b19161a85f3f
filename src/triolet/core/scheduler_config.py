"""The scheduler's limits, from the options and from what the runner has.

This module knows no request and no step.
"""

from __future__ import annotations

from triolet.args import EngineArgs
from triolet.core.runner import OverlappedRunner, Runner
from triolet.scheduling.config import SchedulerConfig

__all__ = ["ROW_GROUP", "scheduler_config"]

ROW_GROUP = 32
"""So many rows go through a weight at once on a CPU with matrix tiles: one more takes a fifth longer."""


def scheduler_config(args: EngineArgs, runner: Runner) -> SchedulerConfig:
    """Those of ``args``, and of a runner that is a CPU's unless its steps overlap with the host."""
    return SchedulerConfig(
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_num_queued_requests=args.max_num_queued_requests,
        max_num_queued_tokens=args.max_num_queued_tokens,
        max_model_len=runner.max_model_len,
        block_size=runner.block_size,
        layer_groups=runner.layer_groups,
        enable_prefix_caching=args.enable_prefix_caching,
        long_prefill_token_threshold=args.long_prefill_token_threshold,
        scheduling_policy=args.scheduling_policy,
        speculation=args.speculation,
        num_speculative_tokens=args.num_speculative_tokens,
        row_group=None if isinstance(runner, OverlappedRunner) else ROW_GROUP,
    )
