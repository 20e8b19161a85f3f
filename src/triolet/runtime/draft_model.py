"""A smaller model that guesses the next tokens, beside the model that decides.

It has KV tensors of its own under the same block ids: it computes every row that the model computes, so that
whatever is in a block, also one found in the prefix cache, is there for both. A guess is drawn as the model's
own token will be, with the request's temperature and filters and the same random number: two models that
think alike then say the same. Adjustments and grammars are left to the model. This module must not know how
guesses are verified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from triolet.plan import PlanRow
from triolet.runtime.batch import BatchBuilder, StepBatch
from triolet.runtime.draw_settings import draw_settings
from triolet.runtime.kv_cache import KVCacheTensors
from triolet.runtime.residence import Sources
from triolet_kernels.ops import Ops

if TYPE_CHECKING:
    from triolet.runtime.loading import Model

__all__ = ["DraftModel"]


class DraftModel:
    """Guesses for the rows that want it.

    ``group``: the model's group of layers whose blocks all layers of this one use; ``num_groups``: how many
    groups of its own these are.
    """

    def __init__(
        self,
        model: Model,
        kv_cache: KVCacheTensors,
        ops: Ops,
        *,
        group: int,
        num_groups: int,
        sources: Sources[Model, KVCacheTensors],
    ) -> None:
        self._model: Model | None = model
        self._kv_cache = kv_cache
        self._ops = ops
        self._group = group
        self._num_groups = num_groups
        self._sources = sources

    def release(self) -> None:
        """Let go of weights and KV cache."""
        self._model = None
        self._kv_cache = ()

    def restore(self, part: str) -> None:
        """Have ``weights`` or ``kv_cache`` again, if they are not there. Raises :class:`ModelLoadError`."""
        if part == "weights" and self._model is None:
            self._model = self._sources.load_model()
        elif part == "kv_cache" and not self._kv_cache:
            self._kv_cache = self._sources.allocate_kv_cache()

    def complete(self, rows: Sequence[PlanRow], builder: BatchBuilder) -> tuple[PlanRow, ...]:
        """Compute all rows, and give draft tokens to those that lack them.

        ``builder`` is the runner's: it knows the block tables and the tokens that the plan does not.
        """
        wanting = [index for index, row in enumerate(rows) if _lacks_draft(row)]
        known_parts = [_known_part(row) for row in rows]
        batch = builder.build(known_parts)
        guesses = self._compute(batch, [known_parts[index] for index in wanting])
        drafts: dict[int, list[int]] = {index: [] for index in wanting}
        known = _tokens_of(batch)
        while wanting:
            for index, token_id in zip(wanting, guesses, strict=True):
                drafts[index].append(token_id)
            steps = [_after_guess(rows[index], drafts[index]) for index in wanting]
            # A row's last guess is computed too: should it be right, nobody comes back to its position.
            batch = builder.build(steps)
            guesses = self._compute(batch, [step for step in steps if step.is_sampled])
            wanting = [index for index, step in zip(wanting, steps, strict=True) if step.is_sampled]
        return tuple(
            replace(row, token_ids=(*known[index], *drafts[index])) if index in drafts else row
            for index, row in enumerate(rows)
        )

    def _compute(self, batch: StepBatch, sampled: Sequence[PlanRow]) -> list[int]:
        """Compute a batch and draw after those of its rows that are sampled."""
        assert self._model is not None, "there are no weights now"
        attention = (batch.attention[self._group],) * self._num_groups
        rows = batch.logit_rows[: len(sampled)]
        hidden = self._model.forward(batch.token_ids, attention, self._kv_cache, rows)
        if not sampled:
            return []
        token_ids: list[int] = self._ops.draw(
            self._model.logits(hidden), draw_settings(sampled)
        ).token_ids.tolist()
        return token_ids


def _lacks_draft(row: PlanRow) -> bool:
    return row.num_draft_tokens > 0 and len(row.token_ids) < row.num_tokens


def _known_part(row: PlanRow) -> PlanRow:
    """The row without the draft tokens that it lacks; sampled if it does lack some."""
    num_lacking = row.num_draft_tokens if _lacks_draft(row) else 0
    return replace(
        row, num_tokens=row.num_tokens - num_lacking, num_draft_tokens=0, is_sampled=num_lacking > 0
    )


def _after_guess(row: PlanRow, draft: Sequence[int]) -> PlanRow:
    """The last guess as a step of its own, sampled if another is wanted after it."""
    return replace(
        row,
        start=row.start + row.num_tokens - row.num_draft_tokens + len(draft) - 1,
        num_tokens=1,
        token_ids=(draft[-1],),
        num_draft_tokens=0,
        is_sampled=len(draft) < row.num_draft_tokens,
    )


def _tokens_of(batch: StepBatch) -> list[list[int]]:
    """The input tokens of each row."""
    token_ids: list[int] = batch.token_ids.tolist()
    starts: list[int] = batch.attention[0].query_starts.tolist()
    return [token_ids[start:end] for start, end in pairwise(starts)]
