"""Ranks without processes: links that keep what is posted to them, and what a rank would say."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import anyio

from triolet.args import EngineArgs
from triolet.cluster.link import LinkClosedError
from triolet.cluster.messages import Add, Message, RankLoad, RankReport, Ready
from triolet.request import FinishReason, Request, RequestOptions, TokenOutput
from triolet.statistics import RankState

__all__ = ["FakeLink", "ask", "load", "ready", "report", "router_args", "said"]


@dataclass(eq=False)
class FakeLink:
    """A link whose other end is the test: ``posted`` is what was sent, :meth:`say` is what comes back."""

    posted: list[Message] = field(default_factory=list)
    closed_reason: str | None = None
    _arrived: deque[Message] = field(default_factory=deque)
    _changed: anyio.Event | None = None

    def post(self, message: Message) -> None:
        self.posted.append(message)
        self._notify()

    async def receive(self) -> Message:
        while not self._arrived:
            if self.closed_reason is not None:
                raise LinkClosedError(f"fake: {self.closed_reason}")
            await self._wait()
        return self._arrived.popleft()

    def close(self, reason: str) -> None:
        self.closed_reason = self.closed_reason or reason
        self._notify()

    def say(self, *messages: Message) -> None:
        self._arrived.extend(messages)
        self._notify()

    def take(self, kind: type[Any]) -> list[Any]:
        """The messages of a class that were posted since the last time."""
        taken = [message for message in self.posted if isinstance(message, kind)]
        self.posted = [message for message in self.posted if not isinstance(message, kind)]
        return taken

    def added(self) -> list[Request]:
        """The requests that were sent since the last time."""
        return [message.request for message in self.take(Add)]

    async def next(self, kind: type[Any]) -> Any:
        """The next message of a class that is posted."""
        while not (taken := [message for message in self.posted if isinstance(message, kind)]):
            await self._wait()
        self.posted.remove(taken[0])
        return taken[0]

    async def _wait(self) -> None:
        if self._changed is None:
            self._changed = anyio.Event()
        await self._changed.wait()

    def _notify(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None


def router_args(**options: Any) -> EngineArgs:
    return EngineArgs(**{"max_num_seqs": 4, "block_size": 8, **options})


def ready(rank: int, generation: int = 0, **fields: Any) -> Ready:
    """The greeting of a rank with 64 blocks of 8 tokens."""
    values = {"max_model_len": 512, "vocab_size": 258, "num_blocks": 64, "block_size": 8, **fields}
    return Ready(rank=rank, generation=generation, **values)


def load(**fields: Any) -> RankLoad:
    """Nothing to do, but for what is given."""
    values: dict[str, Any] = {
        "num_running": 0, "num_waiting": 0, "num_waiting_tokens": 0, "kv_usage": 0.0, "num_steps": 0,
        "step_age": None, "is_paused": False, "is_sleeping": False,
    }  # fmt: skip
    return RankLoad(**{**values, **fields})


def report(
    rank: int,
    state: RankState = RankState.READY,
    *,
    generation: int = 0,
    cause: str | None = None,
    num_restarts: int = 0,
    **loads: Any,
) -> RankReport:
    """News of a rank; with a load if anything about it is given."""
    return RankReport(rank, generation, state, load(**loads) if loads else None, cause, num_restarts, None)


def ask(request_id: int, prompt: int | tuple[int, ...] = 3, **options: Any) -> Request:
    """A request with a prompt of that many tokens, like no other request's; or with the prompt given."""
    token_ids = (
        tuple(range(1000 * request_id, 1000 * request_id + prompt)) if isinstance(prompt, int) else prompt
    )
    return Request(
        request_id=request_id,
        prompt_token_ids=token_ids,
        max_tokens=8,
        seed=0,
        options=RequestOptions(**options),
    )


def said(wire_id: int, *token_ids: int, reason: FinishReason | None = None) -> TokenOutput:
    """An output of a rank."""
    return TokenOutput(request_id=wire_id, token_ids=token_ids, finish_reason=reason)
