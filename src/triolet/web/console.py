"""Lines for the user on the standard output. Knows nothing of what they say."""

from __future__ import annotations

import logging
import os
import sys

__all__ = ["write_line"]

logger = logging.getLogger("triolet.web")


def write_line(line: str) -> None:
    """To the standard output, whose loss (a full disk, `| head -1`) ends no server."""
    try:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except OSError as error:
        logger.warning("nothing more is written to the standard output: %s", error)
        # Or what is left in its buffer would make the exit complain, and fail.
        with open(os.devnull, "wb") as sink:
            os.dup2(sink.fileno(), sys.stdout.fileno())
