"""Tickets: what a client asked a front end for, what came of it, and whether that is right so far.

This module knows no process and no fault.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
from tests.simulation.engine import MAKER_SHIFT, oracle

from triolet.request import FinishReason, Request, TokenOutput

__all__ = ["Ticket", "WrongError"]

EARLY = 1e-6
"""Seconds by which a deadline may be met too early: sums of floating-point numbers."""


class WrongError(AssertionError):
    """What must hold does not."""


class Ticket:
    """A request at a front end. ``outcome`` is how it ended: finish reason, ``refused``, ``left``, ``lost``.

    Raises WrongError at once for an output that is not right.
    """

    def __init__(self, request: Request, name: str, trace: Callable[..., None]) -> None:
        self.request, self.name = request, name
        self.tokens: list[int] = []
        self.outcome: str | None = None
        self.ended_at: float | None = None
        self.cause: str | None = None
        self.given_at = anyio.current_time()
        self.may_be_aborted = False
        """Whether something that ends requests was asked of the engine meanwhile."""
        self.over = anyio.Event()
        self.advanced = anyio.Event()
        self.maker: int | None = None
        """The number of the process that its tokens come from."""
        self._trace = trace

    def take(self, output: TokenOutput) -> None:
        """An output has come."""
        self._check(self.outcome is None, f"an output after its end: {output}")
        for token in output.token_ids:
            self._take_token(*divmod(token, 1 << MAKER_SHIFT))
        self._trace("tokens", self.name, output.token_ids, self.maker, output.finish_reason, output.error)
        if output.finish_reason is not None:
            self._check_end(output, output.finish_reason)
            self.end(output.finish_reason.value, output.error)
        self.advanced.set()
        self.advanced = anyio.Event()

    def end(self, outcome: str, cause: str | None = None) -> None:
        """It has ended."""
        self._check(self.outcome is None, f"it has ended twice: {self.outcome}, {outcome}")
        self._trace("over", self.name, outcome, cause)
        self.outcome, self.cause, self.ended_at = outcome, cause, anyio.current_time()
        self.over.set()
        self.advanced.set()

    def _take_token(self, maker: int, token: int) -> None:
        self._check(self.maker in (None, maker), f"tokens of the processes {self.maker} and {maker}")
        self.maker = maker
        expected, _ = oracle(self.request.prompt_token_ids, len(self.tokens) + 1)
        self._check(len(expected) > len(self.tokens), "a token after the last one")
        self._check(token == expected[-1], f"token {len(self.tokens)} is {token}, not {expected[-1]}")
        self.tokens.append(token)

    def _check_end(self, output: TokenOutput, reason: FinishReason) -> None:
        match reason:
            case FinishReason.STOP | FinishReason.LENGTH:
                full, expected = oracle(self.request.prompt_token_ids, self.request.max_tokens)
                self._check(reason is expected, f"ended by {reason}, not by {expected}")
                self._check(self.tokens == full, "it ended too early")
            case FinishReason.TIMEOUT:
                self._check(self._is_late(), "it timed out too early")
            case FinishReason.ERROR:
                self._check(bool(output.error), "an error without a cause")
                self._check(
                    not output.is_engine_dead or str(output.error).startswith("rank "), "no rank is named"
                )
            case FinishReason.ABORT:
                self._check(self.may_be_aborted, "nobody has aborted it")

    def _is_late(self) -> bool:
        options = self.request.options
        timeouts = [options.timeout]
        if not self.tokens:
            timeouts += [options.queue_timeout, options.first_token_timeout]
        age = anyio.current_time() - self.given_at + EARLY
        return any(timeout is not None and timeout <= age for timeout in timeouts)

    def _check(self, is_right: bool, problem: str) -> None:
        if not is_right:
            raise WrongError(f"{self.name}: {problem}")
