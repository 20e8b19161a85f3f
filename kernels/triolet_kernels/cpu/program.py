"""A step of a model recorded as a program of kernel calls, and run as one call from then on.

While a step is recorded its operations run as ever, but on example tensors; each kernel they would call is
written down instead, with its arguments. What depends on the step (addresses of its batch, numbers of tokens)
is told by the example's addresses and by the roles of arguments, and becomes a variable. Memory for what is
computed on the way is kept and reused as the recording showed that it can be. Calling some 300 kernels from
Python takes longer than many steps do. This module must not know what a model or a kernel computes.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import TorchFunctionMode

from triolet_kernels.cpu.loader import Argument, Kernel, NativeLibrary, Value, word_of
from triolet_kernels.cpu.recorded_draw import RecordedDraw

if TYPE_CHECKING:
    from triolet_kernels.ops import AttentionBatch, DrawnTokens, DrawSettings, KVCache
    from triolet_kernels.steps import Draw, Step

__all__ = ["NotRecordableError", "Program", "ProgramRunner"]

_ALLOCATIONS = ("empty", "empty_like", "new_empty")
_CONVERSIONS = ("contiguous", "float", "to")
_QUERIES = ("__get__", "__len__", "data_ptr", "numel", "stride")
_CACHE_LINE = 64
_SMALLEST_CAPACITY, _GROWTH = 512, 4

_FIELDS = ("positions", "cache_slots", "block_tables", "query_starts")
_SIZES = (Argument.SEQUENCES, Argument.TABLE_STRIDE, Argument.MAX_LENGTH)
_VARIABLES_OF_STEP = 4  # tokens, rows, residual, rows' numbers
_VARIABLES_OF_BATCH = len(_FIELDS) + len(_SIZES)

_TYPES_OF_RUN = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


class NotRecordableError(Exception):
    """A step needs more than kernel calls; the message says what."""


class ProgramRunner:
    """A :class:`triolet_kernels.steps.StepRunner`: runs a step by its program, if one could be recorded."""

    def __init__(self, native: NativeLibrary) -> None:
        self._native = native
        self._is_recordable = native.library is not None
        self._program: Program | None = None
        self._is_draw_recordable = True
        self._draw: RecordedDraw | None = None

    def __call__(
        self, step: Step, residual: Tensor, batches: Sequence[AttentionBatch], kv_cache: KVCache, rows: Tensor
    ) -> Tensor:
        self._prepare(step, residual, batches, kv_cache, rows)
        if self._program is None:
            return step(residual, batches, kv_cache, rows)
        return self._program.run(residual, batches, rows)

    def draw(
        self,
        step: Step,
        draw: Draw,
        residual: Tensor,
        batches: Sequence[AttentionBatch],
        kv_cache: KVCache,
        rows: Tensor,
        settings: DrawSettings,
    ) -> DrawnTokens:
        self._prepare(step, residual, batches, kv_cache, rows)
        if self._program is None:
            return draw(step(residual, batches, kv_cache, rows), settings)
        if self._draw is None and self._is_draw_recordable:
            self._record_draw(self._program, draw)
        if self._draw is None:
            return draw(self._program.run(residual, batches, rows), settings)
        self._draw.set(settings)
        self._program.run(residual, batches, rows, is_extended=True)
        return self._draw.drawn(len(rows))

    def _record_draw(self, program: Program, draw: Draw) -> None:
        recorded = RecordedDraw(draw)
        try:
            program.extend(recorded.record, recorded.max_rows)
        except NotRecordableError:
            self._is_draw_recordable = False
        else:
            self._draw = recorded

    def _prepare(
        self,
        step: Step,
        residual: Tensor,
        batches: Sequence[AttentionBatch],
        kv_cache: KVCache,
        rows: Tensor,
    ) -> None:
        """Have a program for such a step, if it is recordable."""
        num_rows = max(len(residual), len(rows))
        if self._is_recordable and (self._program is None or not self._program.fits(num_rows, kv_cache)):
            self._record(step, residual, batches, kv_cache, num_rows)

    def _record(
        self,
        step: Step,
        residual: Tensor,
        batches: Sequence[AttentionBatch],
        kv_cache: KVCache,
        num_rows: int,
    ) -> None:
        capacity = _SMALLEST_CAPACITY
        while capacity < num_rows:
            capacity *= _GROWTH
        self._draw = None
        try:
            self._program = Program(self._native, step, residual, len(batches), kv_cache, capacity)
        except NotRecordableError:
            self._is_recordable, self._program = False, None


class Program:
    """The kernel calls of a step over ``kv_cache``, of up to ``capacity`` tokens, and rows to look at."""

    def __init__(
        self,
        native: NativeLibrary,
        step: Step,
        residual: Tensor,
        num_batches: int,
        kv_cache: KVCache,
        capacity: int,
    ) -> None:
        """Record ``step``. Raises NotRecordableError if it needs more than kernel calls."""
        assert native.library is not None
        self._native = native
        self._capacity = capacity
        self._first_cache = weakref.ref(kv_cache[0][0])
        example = _Example(residual, num_batches, capacity)
        self._recording = _Recording(example)
        with self._recording.of(native):
            self._output = step(example.residual, example.batches, kv_cache, example.rows)
        self._num_operations = len(self._recording.operations)
        self._variables = np.zeros(example.num_variables, dtype=np.int64)
        self._run = native.library["triolet_run_program"]
        self._run.restype = ctypes.c_bool
        self._run.argtypes = _TYPES_OF_RUN
        self._lay_out()

    def extend(self, more: Callable[[Tensor], None], max_rows: int) -> None:
        """Record what ``more`` makes of what the step returns for ``max_rows`` rows, to be run after it.

        Raises NotRecordableError.
        """
        output = self._output[:max_rows]
        with self._recording.of(self._native, max_rows):
            more(output)
        self._lay_out()

    def _lay_out(self) -> None:
        """What has been recorded, as the native function reads it."""
        recording = self._recording
        self._arguments = np.array(recording.arguments, dtype=np.int64)
        start = self._arguments.ctypes.data
        self._operations = np.array(
            [
                (caller, kernel, start + 16 * first, count)
                for caller, kernel, first, count in recording.operations
            ],
            dtype=np.int64,
        )
        self._addresses = self._operations.ctypes.data, self._variables.ctypes.data

    def fits(self, num_rows: int, kv_cache: KVCache) -> bool:
        """Whether a step over so many tokens, or rows to look at, and this cache can be run."""
        return num_rows <= self._capacity and self._first_cache() is kv_cache[0][0]

    def run(
        self,
        residual: Tensor,
        batches: Sequence[AttentionBatch],
        rows: Tensor,
        *,
        is_extended: bool = False,
    ) -> Tensor:
        """What the step returns, in memory that the next step will use again; then what it was extended by.

        MemoryError as the kernels.
        """
        variables = [len(residual), len(rows), residual.data_ptr(), rows.data_ptr()]
        for batch in batches:
            variables += [getattr(batch, name).data_ptr() for name in _FIELDS]
            tables = batch.block_tables
            variables += [tables.shape[0], tables.stride(0), batch.max_sequence_length]
        self._variables[:] = variables
        operations, variable_words = self._addresses
        num_operations = len(self._operations) if is_extended else self._num_operations
        if not self._run(operations, num_operations, variable_words, *self._native.team):
            raise MemoryError("no memory for the kernels of a step to work in")
        return self._output[: len(rows)]


class _Example:
    """Inputs to record with, and which variable each of their addresses and sizes stands for."""

    def __init__(self, residual: Tensor, num_batches: int, capacity: int) -> None:
        from triolet_kernels.ops import AttentionBatch

        num_rows, num_tokens = capacity + 1, capacity + 2  # different, so that they can be told apart
        self.residual = residual.new_empty(num_tokens, residual.shape[1])
        self.rows = torch.empty(num_rows, dtype=torch.int64)
        self.batches = [
            AttentionBatch(
                positions=torch.empty(num_tokens, dtype=torch.int64),
                cache_slots=torch.empty(num_tokens, dtype=torch.int64),
                block_tables=torch.empty(1, 1, dtype=torch.int32),
                query_starts=torch.empty(2, dtype=torch.int32),
                sequence_lengths=torch.empty(1, dtype=torch.int32),
                max_query_length=num_tokens,
                max_sequence_length=num_tokens,
            )
            for _ in range(num_batches)
        ]
        self.num_variables = _VARIABLES_OF_STEP + num_batches * _VARIABLES_OF_BATCH
        self.variable_of_rows = {num_tokens: 0, num_rows: 1}
        self.variable_of_address = {self.residual.data_ptr(): 2, self.rows.data_ptr(): 3}
        for index, batch in enumerate(self.batches):
            first = _VARIABLES_OF_STEP + index * _VARIABLES_OF_BATCH
            addresses = [getattr(batch, name).data_ptr() for name in _FIELDS]
            self.variable_of_address |= {address: first + i for i, address in enumerate(addresses)}


class _Recording(TorchFunctionMode):
    """Writes kernel calls down, hands out memory, and refuses everything else that torch is asked for."""

    def __init__(self, example: _Example) -> None:
        super().__init__()
        self.arguments: list[tuple[int, int]] = []
        self.operations: list[tuple[int, int, int, int]] = []
        self.memory: list[NDArray[np.uint8]] = []
        self._example = example
        self._unused: defaultdict[int, list[NDArray[np.uint8]]] = defaultdict(list)

    @contextmanager
    def of(self, native: NativeLibrary, num_rows: int | None = None) -> Iterator[None]:
        """Write down the calls of kernels in here; ``num_rows`` stands for the number of rows looked at."""
        if num_rows is not None:
            self._example.variable_of_rows[num_rows] = self._example.variable_of_rows[len(self._example.rows)]
        native.recordings.append(self)
        try:
            with self:
                yield
        finally:
            native.recordings.pop()

    def add(self, kernel: Kernel, values: Sequence[Value]) -> None:
        """A call of ``kernel``, the team's arguments left out."""
        if kernel.caller is None or kernel.address is None:
            raise NotRecordableError(f"the kernel {kernel.name} cannot be called by a program")
        first = len(self.arguments)
        batch = self._batch_of(kernel, values)
        for role, value in zip(kernel.signature, values, strict=True):
            self.arguments.append(self._argument(role, value, batch))
        self.operations.append((kernel.caller, kernel.address, first, len(self.arguments) - first))

    def _batch_of(self, kernel: Kernel, values: Sequence[Value]) -> int:
        """The first variable of the batch whose addresses a call is given; 0 if there are none."""
        for role, value in zip(kernel.signature, values, strict=True):
            variable = self._example.variable_of_address.get(value, 0) if role is Argument.POINTER else 0  # type: ignore[arg-type]
            if variable >= _VARIABLES_OF_STEP:
                return variable - (variable - _VARIABLES_OF_STEP) % _VARIABLES_OF_BATCH
        return 0

    def _argument(self, role: Argument, value: Value, batch: int) -> tuple[int, int]:
        """A factor and the number of a variable, or a value and -1."""
        if role is Argument.POINTER and value in self._example.variable_of_address:
            return 1, self._example.variable_of_address[int(value)]
        if role is Argument.ROWS:
            for num_rows, variable in self._example.variable_of_rows.items():
                if value and value % num_rows == 0:
                    return int(value) // num_rows, variable
            raise NotRecordableError(
                f"a kernel is called for {value} rows, which are no multiple of all or of the last"
            )
        if role in _SIZES:
            return 1, batch + len(_FIELDS) + _SIZES.index(role)
        return word_of(role, value), -1

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name, options = func.__name__, dict(kwargs or {})
        if name in _QUERIES:
            return func(*args, **options)
        if name in _ALLOCATIONS:
            return self._allocate(func(*args, **(options | {"device": "meta"})))
        if name in _CONVERSIONS and (converted := func(*args, **options)) is args[0]:
            return converted
        raise NotRecordableError(f"torch is asked for {name}")

    def _allocate(self, wanted: Tensor) -> Tensor:
        """Memory for a tensor, which may be used again once nothing refers to it."""
        unused = self._unused[wanted.nbytes]
        if not unused:
            unused.append(_aligned_memory(wanted.nbytes))
            self.memory.append(unused[-1])
        memory = unused.pop()
        lent = memory.view(_Lent)
        weakref.finalize(lent, unused.append, memory).atexit = False
        return torch.from_numpy(lent).view(wanted.dtype).view(wanted.shape)


class _Lent(np.ndarray[Any, Any]):
    """Memory that lives as long as the tensors over it."""


def _aligned_memory(num_bytes: int) -> NDArray[np.uint8]:
    """Memory from a cache line's start on: tiles take twice as long to load where rows straddle lines."""
    memory = np.empty(num_bytes + _CACHE_LINE, dtype=np.uint8)
    start = -memory.ctypes.data % _CACHE_LINE
    return memory[start : start + num_bytes]
