"""What went wrong in one shard, as bytes of a fixed number that others can be sent.

What a user can mend arrives as what it was, running out of memory as MemoryError, and anything else as an
EngineError. This module knows no process group.
"""

from __future__ import annotations

import json

import torch
from torch import Tensor

from triolet import errors

__all__ = ["decode_status", "encode_status", "new_status"]

NUM_BYTES = 2048
OUT_OF_MEMORY_NAMES = ("MemoryError", "OutOfMemoryError")


def new_status() -> Tensor:
    """Room for one."""
    return torch.zeros(NUM_BYTES, dtype=torch.uint8)


def encode_status(error: Exception | None) -> Tensor:
    """``(NUM_BYTES,)`` uint8: zeros where nothing went wrong; a long message is cut off."""
    status = new_status()
    if error is not None:
        encoded = _encode(error, str(error))
        status[: len(encoded)] = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
    return status


def _encode(error: Exception, text: str) -> bytes:
    param = getattr(error, "param", None)
    encoded = json.dumps([type(error).__name__, text, param]).encode()
    return encoded if len(encoded) <= NUM_BYTES else _encode(error, text[: len(text) // 2])


def decode_status(status: Tensor, index: int) -> Exception | None:
    """The error that shard ``index`` had; None if it had none."""
    encoded = bytes(status.numpy()).rstrip(b"\0")
    if not encoded:
        return None
    name, text, param = json.loads(encoded)
    kind = getattr(errors, name, None) if name in errors.__all__ else None
    if kind is not None and issubclass(kind, errors.UsageError | errors.ModelLoadError):
        made: Exception = kind(text, param=param)
        return made
    message = f"tensor parallel shard {index}: {name}: {text}"
    return MemoryError(message) if name in OUT_OF_MEMORY_NAMES else errors.EngineError(message)
