"""What Triton's interpreter needs before it computes as a GPU does, in bearable time.

- It puts its own operations in the place of the language's again at each call of a function within a kernel,
  over those that are there already: each of them then goes through all those before it. Once is enough.
- It keeps bfloat16 numbers as integers, and multiplies matrices of them as such.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import triton.language as tl
from triton.runtime import interpreter

__all__ = ["repair_interpreter"]


def repair_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place = interpreter._patch_lang
    multiply = interpreter.InterpreterBuilder.create_dot

    def put_in_place_once(fn: Any) -> Any:
        modules = [value for value in fn.__globals__.values() if inspect.ismodule(value)]
        languages = [module for module in modules if module in (tl, tl.core)]
        if any(tl.core.is_builtin(language.load) for language in languages):
            return put_in_place(fn)
        return None

    def multiply_numbers(self: Any, left: Any, right: Any, *rest: Any) -> Any:
        return multiply(self, _widened(left), _widened(right), *rest)

    monkeypatch.setattr(interpreter, "_patch_lang", put_in_place_once)
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", multiply_numbers)


def _widened(handle: Any) -> Any:
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    bits = handle.data.astype(np.uint32) << np.uint32(16)
    return interpreter.TensorHandle(bits.view(np.float32), tl.float32)
