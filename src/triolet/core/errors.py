"""One error out of the groups that task groups make of it. Knows nothing of engines or requests."""

from __future__ import annotations

__all__ = ["single_error"]


def single_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one exception in nested groups of one, or the group itself where there are several."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
