"""Plan rows with little to say, for tests of the runtime."""

from __future__ import annotations

from typing import Any

from triolet.plan import PlanRow
from triolet.request import Request

__all__ = ["make_row"]


def make_row(
    token_ids: tuple[int, ...] = (0,),
    *,
    slot: int = 0,
    start: int = 0,
    first_new_block: int = 0,
    new_block_ids: tuple[int, ...] = (),
    more_block_ids: tuple[tuple[int, ...], ...] = (),
    is_sampled: bool = True,
    seed: int = 0,
    prompt_token_ids: tuple[int, ...] = (0,),
    num_draft_tokens: int = 0,
    num_tokens: int | None = None,
    history: tuple[int, ...] | None = None,
    **params: Any,
) -> PlanRow:
    """A row of a request with ``params``; no ``token_ids`` is one token that is not known yet.

    ``more_block_ids``: of the groups of layers after the first. The last ``num_draft_tokens`` tokens are
    guesses; with ``num_tokens`` some may be lacking.
    """
    return PlanRow(
        request=Request(
            request_id=slot, prompt_token_ids=prompt_token_ids, max_tokens=1, seed=seed, **params
        ),
        slot=slot,
        start=start,
        num_tokens=num_tokens or len(token_ids) or 1,
        token_ids=token_ids,
        first_new_block=first_new_block,
        new_block_ids=(new_block_ids, *more_block_ids),
        is_sampled=is_sampled,
        num_draft_tokens=num_draft_tokens,
        history=history,
    )
