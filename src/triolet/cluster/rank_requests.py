"""The requests of many front ends on one engine: whose each is, and under which id.

Front ends number their requests as they like, so each request has a number of its own here. What one step
produced goes to each front end in one message.

This module knows neither streams nor processes: a front end is something that messages are posted to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import count

import anyio

from triolet.cluster.client import EngineClient
from triolet.cluster.frames import WireError
from triolet.cluster.messages import Outputs
from triolet.errors import RequestError
from triolet.request import FinishReason, Request, TokenOutput

__all__ = ["FrontEndRequests", "RankRequests"]


@dataclass(slots=True)
class _Entry:
    """A request under way: whose it is, its id there, its prompt's length until it has a token, then 0.

    ``has_output``: something has been said of it, if only of its prompt.
    """

    front_end: FrontEndRequests
    request_id: int
    num_waiting_tokens: int
    has_output: bool = False


@dataclass(eq=False, slots=True)
class FrontEndRequests:
    """Those of one front end: our ids by its own. ``post`` sends it a message, never blocking."""

    post: Callable[[Outputs], None]
    ids: dict[int, int] = field(default_factory=dict)


class RankRequests:
    """All requests of an engine. ``on_change`` is called whenever there is more or less to do."""

    def __init__(self, client: EngineClient, on_change: Callable[[], None]) -> None:
        self._client = client
        self._on_change = on_change
        self._ids = count()
        self._entries: dict[int, _Entry] = {}
        self._idle: anyio.Event | None = None
        self._is_over = False
        self.num_waiting_tokens = 0
        """Tokens in the prompts of requests that have no token yet."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, front_end: FrontEndRequests, request: Request) -> None:
        """Take a request in; one that cannot be is answered at once, with what is wrong with it.

        After :meth:`end_all` nothing is said of it: whoever asks will see the link end.
        Raises WireError for an id that is in use.
        """
        if self._is_over:
            return
        if request.request_id in front_end.ids:
            raise WireError(f"request {request.request_id} is under way already")
        own_id = next(self._ids)
        try:
            self._client.add(replace(request, request_id=own_id))
        except RequestError as exc:
            refusal = TokenOutput(
                request_id=request.request_id,
                finish_reason=FinishReason.ERROR,
                error=exc.message,
                error_param=exc.param,
            )
            front_end.post(Outputs((refusal,)))
            return
        front_end.ids[request.request_id] = own_id
        self._entries[own_id] = _Entry(front_end, request.request_id, len(request.prompt_token_ids))
        self.num_waiting_tokens += len(request.prompt_token_ids)
        self._on_change()

    def abort(
        self, front_end: FrontEndRequests, request_ids: Iterable[int], *, is_moved: bool = False
    ) -> None:
        """Take requests out; those that have ended are ignored. Nothing more is said of them.

        ``is_moved``: another engine has them from here on.
        """
        for request_id in request_ids:
            own_id = front_end.ids.get(request_id)
            if own_id is not None:
                self._client.abort(own_id, is_moved=is_moved)
                self._forget(own_id)

    def leave(self, front_end: FrontEndRequests) -> None:
        """The front end is gone: take out its requests. Those of which nothing was said it may give again."""
        for request_id, own_id in list(front_end.ids.items()):
            self.abort(front_end, [request_id], is_moved=not self._entries[own_id].has_output)

    def end_all(self, cause: str) -> None:
        """Fail the requests of which anything was said, for ``cause``, and take none from here on.

        Nothing is said of the others, neither now nor by a step under way: they can still be had elsewhere.
        """
        self._is_over = True
        begun = [own_id for own_id, entry in self._entries.items() if entry.has_output]
        for own_id, entry in self._entries.items():
            self._client.abort(own_id, is_moved=not entry.has_output)
        self._give(
            [
                TokenOutput(
                    request_id=own_id, finish_reason=FinishReason.ERROR, error=cause, is_engine_dead=True
                )
                for own_id in begun
            ]
        )
        for own_id in list(self._entries):
            self._forget(own_id)

    async def hand_out(self) -> None:
        """Give the outputs of each step to those they are for, until the engine has stopped."""
        while outputs := await self._client.get_outputs():
            self._give(outputs)
            del outputs  # or the last ones stay alive as long as the engine is idle

    async def wait_idle(self) -> None:
        """Return once no request is under way."""
        while self._entries:
            if self._idle is None:
                self._idle = anyio.Event()
            await self._idle.wait()

    def _give(self, outputs: list[TokenOutput]) -> None:
        shares: defaultdict[FrontEndRequests, list[TokenOutput]] = defaultdict(list)
        for output in outputs:
            entry = self._entries.get(output.request_id)
            if entry is None:
                continue  # aborted while the step was under way
            shares[entry.front_end].append(_readdressed(output, entry))
            self._note(output, entry)
        for front_end, share in shares.items():
            for message in Outputs.batches(share):
                self._post(front_end, message.outputs)
        self._on_change()

    def _post(self, front_end: FrontEndRequests, outputs: tuple[TokenOutput, ...]) -> None:
        """Send outputs in as many messages as their size takes; one too long for any ends its request."""
        try:
            front_end.post(Outputs(outputs))
        except WireError as exc:
            if len(outputs) > 1:
                middle = len(outputs) // 2
                self._post(front_end, outputs[:middle])
                self._post(front_end, outputs[middle:])
                return
            self.abort(front_end, [outputs[0].request_id])
            front_end.post(Outputs((_too_long(outputs[0], exc),)))

    def _note(self, output: TokenOutput, entry: _Entry) -> None:
        entry.has_output = True
        if output.finish_reason is not None:
            self._forget(output.request_id)
        elif output.token_ids:
            self.num_waiting_tokens -= entry.num_waiting_tokens
            entry.num_waiting_tokens = 0

    def _forget(self, own_id: int) -> None:
        entry = self._entries.pop(own_id)
        del entry.front_end.ids[entry.request_id]
        self.num_waiting_tokens -= entry.num_waiting_tokens
        if not self._entries and self._idle is not None:
            self._idle.set()
            self._idle = None
        self._on_change()


def _too_long(output: TokenOutput, error: WireError) -> TokenOutput:
    """What is said in place of an output that cannot be sent."""
    param = "logprobs" if output.prompt_logprobs is None else "prompt_logprobs"
    return TokenOutput(
        request_id=output.request_id,
        finish_reason=FinishReason.ERROR,
        error=f"{param}: cannot be sent by the engine's process, ask for fewer: {error}",
        error_param=param,
    )


def _readdressed(output: TokenOutput, entry: _Entry) -> TokenOutput:
    """The output under its front end's id. What there is to say of the prompt comes with the first token."""
    if (
        entry.num_waiting_tokens
        or output.finish_reason is not None
        or output.logprobs is not None
        or output.prompt_logprobs is not None
    ):
        return replace(output, request_id=entry.request_id)
    return TokenOutput(request_id=entry.request_id, token_ids=output.token_ids)
