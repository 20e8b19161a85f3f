"""``ShardGroup``: the processes that hold a model's shards, joined by torch.distributed.

Every call here is made by all of them, in the same order. Sums are added in the order of the shards, so that
equal parts give equal bits. A shard that goes breaks the group for good: EngineDeadError in all the others.
There is no authentication: the network between the shards must be trusted.

This module knows no model and no request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed import BroadcastOptions, GatherOptions

from triolet.errors import EngineDeadError
from triolet.runtime.shard_status import decode_status, encode_status, new_status

__all__ = ["ShardGroup", "attempt"]

T = TypeVar("T")


def attempt(function: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """What a function returns, or what it fails with; the loss of a shard is raised as it is."""
    try:
        return function(), None
    except EngineDeadError:
        raise
    except Exception as error:
        return None, error


class ShardGroup:
    """Shard ``index`` of ``count``; shard 0 leads.

    ``control`` carries orders and news of errors, on CPUs, and may wait for as long as nobody has anything to
    do. ``data`` carries tensors of ``device``. Both are process groups of torch.distributed. ``store`` is
    where they met, and where a shard leaves word of why it goes.
    """

    def __init__(
        self, index: int, count: int, control: Any, data: Any, device: torch.device, store: Any
    ) -> None:
        self.index = index
        self.count = count
        self.device = device
        self.num_sums = 0
        self._control = control
        self._data = data
        self._store = store

    @property
    def leads(self) -> bool:
        return self.index == 0

    # ------------------------------------------------------------------ tensors

    def sum(self, x: Tensor) -> Tensor:
        """What the shards' ``x`` add up to, in their order, added in float32."""
        parts = [torch.empty_like(x) for _ in range(self.count)]
        self._wait(lambda: self._data.allgather([parts], [x.contiguous()]))
        self.num_sums += 1
        total = parts[0].float()
        for part in parts[1:]:
            total = total + part
        return total.to(x.dtype)

    def broadcast(self, x: Tensor) -> Tensor:
        """Shard 0's ``x``, into that of all others."""
        self._wait(lambda: self._data.broadcast([x], BroadcastOptions()))
        return x

    def gather(self, x: Tensor) -> list[Tensor]:
        """At shard 0 the ``x`` of all shards, of one shape; at the others nothing."""
        return self._gather(self._data, x)

    # ------------------------------------------------------------------ orders

    def order(self, words: Tensor) -> Tensor:
        """Shard 0's ``words``, int64 on a CPU, into those of all others; these wait for it."""
        self._wait(lambda: self._control.broadcast([words], BroadcastOptions()))
        return words

    def report(self, error: Exception | None) -> None:
        """Tell shard 0 what failed here. It raises that, or what failed there; the others raise nothing."""
        statuses = self._gather(self._control, encode_status(error))
        if self.leads and error is not None:
            raise error
        self._raise_first(statuses)

    def together(self, function: Callable[[], T]) -> T:
        """Have all shards do something without each other; all raise what it raises in one of them."""
        result, error = attempt(function)
        statuses = [new_status() for _ in range(self.count)]
        self._wait(lambda: self._control.allgather([statuses], [encode_status(error)]))
        if error is not None:
            raise error
        self._raise_first(statuses)
        return result  # type: ignore[return-value]

    def smallest(self, values: Sequence[int]) -> tuple[int, ...]:
        """The smallest of each value over all shards."""
        own = torch.tensor(values, dtype=torch.int64)
        everyones = [torch.empty_like(own) for _ in range(self.count)]
        self._wait(lambda: self._control.allgather([everyones], [own]))
        return tuple(torch.stack(everyones).amin(dim=0).tolist())

    def close(self) -> None:
        """Let go of the others, who will hear of it if they still wait. May be called twice."""
        self._control = self._data = self._store = None

    def leave_word(self, cause: str) -> None:
        """Say why this shard goes, for the others to find. Nothing where shard 0 is gone already."""
        if self._store is not None:
            with suppress(RuntimeError):
                self._store.set(f"gone/{self.index}", cause)

    def _words(self) -> str:
        """Why shards say that they have gone."""
        with suppress(RuntimeError):
            return "; ".join(
                f"shard {index} failed: {self._store.get(f'gone/{index}').decode(errors='replace')}"
                for index in range(self.count)
                if self._store.check([f"gone/{index}"])
            )
        return ""

    def _gather(self, processes: Any, x: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(x) for _ in range(self.count)] if self.leads else []
        outputs = [parts] if parts else []
        self._wait(lambda: processes.gather(outputs, [x.contiguous()], GatherOptions()))
        return parts

    def _raise_first(self, statuses: Sequence[Tensor]) -> None:
        for index, status in enumerate(statuses):
            error = decode_status(status, index)
            if error is not None:
                raise error

    def _wait(self, begin: Callable[[], Any]) -> None:
        if self._control is None:
            raise EngineDeadError("the shards have parted")
        try:
            begin().wait()
        except RuntimeError as error:
            cause = self._words() or str(error).partition("\n")[0]
            self.close()  # what is left of it would wait for ever
            raise EngineDeadError(f"a tensor parallel shard was lost: {cause}") from error
