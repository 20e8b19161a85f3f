"""``read_json_object``: one JSON object from a file that somebody else wrote.

This module knows nothing of what the fields mean.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from triolet.errors import ModelFileError

__all__ = ["read_json_object"]

MAX_JSON_BYTES = 64 * 2**20


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a file of bounded size. Raises :class:`ModelFileError` naming the file."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelFileError(f"{path}: larger than {MAX_JSON_BYTES} bytes, which no such file is")
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise ModelFileError(f"{path}: must hold an object, not {type(document).__name__}")
    return document
