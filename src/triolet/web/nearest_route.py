"""Which route somebody may have meant who asked for one that is not there.

Knows paths and nothing of a framework.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Set

__all__ = ["nearest_route"]

LONGEST_PATH = 100
"""Longer paths are no misspelling, and are not compared."""
SIMILARITY = 0.8


def nearest_route(path: str, routes: Set[str]) -> str | None:
    """The route among ``routes`` that ``path`` most likely stands for; None if there is none.

    ``/chat/completions`` stands for ``/v1/chat/completions``: base URLs are given with and without ``/v1``.
    """
    if len(path) > LONGEST_PATH:
        return None
    bare = re.sub(r"/+", "/", path).rstrip("/")
    bare = re.sub(r"^(/api)?(/v\d+)*(?=/)", "", bare)
    for candidate in (f"/v1{bare}", bare):
        if candidate in routes:
            return candidate
    close = difflib.get_close_matches(path, sorted(routes), n=1, cutoff=SIMILARITY)
    return close[0] if close else None
