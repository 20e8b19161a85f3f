"""The messages between the processes of a cluster, and their bytes.

A message is an array: its tag, then its fields in their order (see :mod:`triolet.cluster.codec`). Fields may
be added at the end of a class, with a default; anything else is a new ``PROTOCOL_VERSION``.

This module knows no stream and nothing of who sends what when.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from triolet import errors
from triolet.cluster.codec import Decoder, Encoder, dataclass_decoder, dataclass_encoder
from triolet.cluster.frames import WireError
from triolet.cluster.output_rows import decode_rows, encode_rows
from triolet.cluster.packing import MAX_ARRAY, pack, unpack
from triolet.request import Request, TokenOutput
from triolet.statistics import RankState, RankStatistics

__all__ = [
    "Abort",
    "Add",
    "Beat",
    "Call",
    "Dead",
    "Drain",
    "Join",
    "Leaving",
    "Message",
    "Outputs",
    "Phase",
    "Ping",
    "Pong",
    "RankLoad",
    "RankReport",
    "RankReports",
    "Ready",
    "Refused",
    "RemoteError",
    "Result",
    "Start",
    "Stop",
    "Tally",
    "Topology",
    "Unheard",
    "Welcome",
    "decode_message",
    "encode_message",
]


@dataclass(frozen=True, slots=True)
class RankLoad:
    """What a rank has to do. ``step_age``: seconds since the step under way began, None between steps."""

    num_running: int
    num_waiting: int
    num_waiting_tokens: int
    kv_usage: float
    num_steps: int
    step_age: float | None
    is_paused: bool
    is_sleeping: bool


@dataclass(frozen=True, slots=True)
class RankReport:
    """What is known of a rank. ``generation`` counts its starts; ``cause`` says why it is not serving."""

    rank: int
    generation: int
    state: RankState
    load: RankLoad | None
    cause: str | None
    num_restarts: int
    phase: str | None


@dataclass(frozen=True, slots=True)
class RemoteError:
    """An exception on its way to the caller in another process: its class's name, text and attributes."""

    name: str
    text: str
    attributes: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, error: Exception) -> RemoteError:
        """What the other process needs to raise the like of it."""
        names = ("param", "retry_after", "status")
        values = {name: getattr(error, name) for name in names if name in vars(error)}
        return cls(type(error).__name__, str(error), values)

    def exception(self) -> Exception:
        """The error again if it is one of triolet's own or a RuntimeError, else an EngineError."""
        if self.name == "RuntimeError":
            return RuntimeError(self.text)
        kind = getattr(errors, self.name, None) if self.name in errors.__all__ else None
        if kind is errors.OverloadedError:
            retry_after = self.attributes.get("retry_after")
            return errors.OverloadedError(
                self.text,
                retry_after=retry_after if type(retry_after) is int else 1,
                is_serving=self.attributes.get("status") != 503,
            )
        if kind is None:
            return errors.EngineError(f"{self.name}: {self.text}")
        param = self.attributes.get("param")
        made: Exception = kind(self.text, param=param if type(param) is str else None)
        return made


@dataclass(frozen=True, slots=True)
class Start:
    """To a child: what to be. ``args`` are the options as plain values, ``secret`` is that of the launch."""

    role: str
    args: dict[str, Any]
    rank: int
    generation: int
    secret: bytes = field(repr=False)
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Topology:
    """To a rank: the addresses of all front ends to serve, each time anew."""

    front_ends: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drain:
    """Finish within so many seconds, abort what is left then, and end with exit code 0.

    From a front end to a rank: end what is left of its requests then; the rank goes on for others.
    ``lead_seconds`` before that an API server says that it is not ready, and still takes requests.
    """

    seconds: float
    lead_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Stop:
    """End now."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What a child is doing while it starts."""

    text: str


@dataclass(frozen=True, slots=True)
class Ready:
    """A rank serves; what it can hold."""

    rank: int
    generation: int
    max_model_len: int
    vocab_size: int
    num_blocks: int
    block_size: int


@dataclass(frozen=True, slots=True)
class Beat:
    """A rank is alive, and this is its load."""

    load: RankLoad


@dataclass(frozen=True, slots=True)
class Tally:
    """What a rank has counted, in this process and those before it: the next one goes on from there."""

    statistics: RankStatistics


@dataclass(frozen=True, slots=True)
class Dead:
    """A child's last word: what it fails with."""

    error: RemoteError


@dataclass(frozen=True, slots=True)
class Add:
    """To a rank: serve this request."""

    request: Request


@dataclass(frozen=True, slots=True)
class Abort:
    """To a rank: these requests are no longer wanted of it. ``is_moved``: another has them from here on."""

    request_ids: tuple[int, ...]
    is_moved: bool = False


@dataclass(frozen=True, slots=True)
class Outputs:
    """From a rank: what one step produced, or a part of it."""

    outputs: tuple[TokenOutput, ...]

    @classmethod
    def batches(cls, outputs: Sequence[TokenOutput]) -> Iterator[Outputs]:
        """As many messages as it takes."""
        for start in range(0, len(outputs), MAX_ARRAY):
            yield cls(tuple(outputs[start : start + MAX_ARRAY]))


@dataclass(frozen=True, slots=True)
class Join:
    """From a headless node: it has these ranks, and was started with this configuration."""

    node: str
    ranks: tuple[int, ...]
    config: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Welcome:
    """To a headless node: the front ends that its ranks are to serve."""

    front_ends: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """To a headless node: it cannot join; ``fields`` of its configuration differ."""

    reason: str
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Leaving:
    """From a headless node: it is about to leave, and why: it was told to, or something failed."""

    reason: str
    is_failure: bool


@dataclass(frozen=True, slots=True)
class RankReports:
    """What is known of some ranks: up from nodes, down to API servers."""

    reports: tuple[RankReport, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """Do something and answer with the :class:`Result` of the same ``call_id``."""

    call_id: int
    method: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """What a call came to: its value, or the error."""

    call_id: int
    value: Any = None
    error: RemoteError | None = None


@dataclass(frozen=True, slots=True)
class Ping:
    """Answer with a :class:`Pong` of the same ``counter``."""

    counter: int


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a :class:`Ping`."""

    counter: int


@dataclass(frozen=True, slots=True)
class Unheard:
    """The last message on a link: it is given up, as nothing was heard of the other side for so long."""

    seconds: float


Message = (
    Start | Topology | Drain | Stop | Phase | Ready | Beat | Tally | Dead | Add | Abort
    | Outputs | Join | Welcome | Refused | RankReports | Leaving | Call | Result | Ping | Pong | Unheard
)  # fmt: skip

_TAGS: dict[type[Any], int] = {
    Start: 1, Topology: 2, Drain: 3, Stop: 4, Phase: 5, Ready: 6, Beat: 7, Dead: 8,
    Tally: 9,
    Add: 16, Abort: 17, Outputs: 18,
    Join: 32, Welcome: 33, Refused: 34, RankReports: 35, Leaving: 36,
    Call: 48, Result: 49, Ping: 50, Pong: 51, Unheard: 52,
}  # fmt: skip

_ENCODERS: dict[type[Any], Encoder] = {
    cls: dataclass_encoder(cls, {"outputs": encode_rows} if cls is Outputs else {}) for cls in _TAGS
}
_DECODERS: dict[int, Decoder] = {
    tag: dataclass_decoder(cls, {"outputs": decode_rows} if cls is Outputs else {})
    for cls, tag in _TAGS.items()
}


def encode_message(message: Message) -> bytes:
    """The payload of a frame. Raises WireError for what cannot be sent, such as a function."""
    kind = type(message)
    return pack((_TAGS[kind], *_ENCODERS[kind](message)))


def decode_message(payload: bytes) -> Message:
    """The message in a payload, every field checked. Raises WireError, whatever the payload is."""
    values = unpack(payload)
    if type(values) is not tuple or not values or type(values[0]) is not int:
        raise WireError("a message must be an array that begins with its tag")
    decode = _DECODERS.get(values[0])
    if decode is None:
        raise WireError(f"there is no message {values[0]}")
    message: Message = decode(values[1:])
    return message
