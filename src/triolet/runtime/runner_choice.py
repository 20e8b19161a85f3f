"""Which runner suits the device.

This module knows the runners by name and nothing of what they do.
"""

from __future__ import annotations

from collections.abc import Callable

from triolet.args import EngineArgs
from triolet.models.source import ModelFiles
from triolet.runtime.constraints import Constraints
from triolet.runtime.device import choose_device
from triolet.runtime.runner import ModelRunner

__all__ = ["load_runner"]


def load_runner(
    files: ModelFiles,
    args: EngineArgs,
    on_phase: Callable[[str], None],
    constraints: Constraints | None = None,
    num_sharing: int = 1,
) -> ModelRunner:
    """See :meth:`ModelRunner.load`. On a GPU steps overlap with the host, but for those with a draft model,
    which guesses with the host between its steps."""
    kind: type[ModelRunner] = ModelRunner
    if choose_device(args).type != "cpu" and args.speculation != "draft":
        # Not before it is needed: what computes on a GPU takes a second to be imported.
        from triolet.runtime.overlapped_runner import OverlappedRunner

        kind = OverlappedRunner
    return kind.load(files, args, on_phase, constraints, num_sharing)
