"""Messages survive the way over the wire, and nothing else does."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from tests.triolet.cluster.example_messages import EXAMPLES

from triolet import errors
from triolet.cluster import messages
from triolet.cluster.frames import WireError
from triolet.cluster.messages import Message, RemoteError, decode_message, encode_message
from triolet.cluster.packing import MAX_ARRAY
from triolet.request import LogitsAdjustments, Request, TokenOutput


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_the_same(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


def test_there_is_an_example_of_every_message() -> None:
    assert {type(message) for message in EXAMPLES} == set(messages._TAGS)


def test_defaults_at_the_end_are_left_out() -> None:
    assert len(encode_message(messages.Result(1))) == 3


def test_outputs_are_sent_in_as_many_messages_as_it_takes() -> None:
    outputs = [TokenOutput(request_id=request_id) for request_id in range(MAX_ARRAY + 1)]
    arrived = [decode_message(encode_message(message)) for message in messages.Outputs.batches(outputs)]
    assert arrived == [messages.Outputs(tuple(outputs[:-1])), messages.Outputs((outputs[-1],))]
    assert list(messages.Outputs.batches([])) == []


def test_functions_cannot_be_sent() -> None:
    adjustments = LogitsAdjustments(processors=(lambda token_ids, logits: logits,))
    request = Request(request_id=1, prompt_token_ids=(1,), max_tokens=1, seed=0, adjustments=adjustments)
    with pytest.raises(WireError, match="cannot be sent"):
        encode_message(messages.Add(request))


@pytest.mark.parametrize(
    "values",
    [
        None,
        (),
        ("a",),
        (True,),
        (99,),
        (50,),
        (50, 1, 2),
        (50, True),
        (50, 1.0),
        (3, "x"),
        (3, None),
        (2, ("a", 5)),
        (2, "ab"),
        (8, b"x"),
        (16, (1, (1,), 5, 0, 0.0, 1.0, 0, 0.0, (), None, None, (0.0,) * 9 + ((None,),))),
        (16, (1, ("a",), 5, 0)),
        (16, (1, b"1234567", 5, 0)),
        (16, (1, (1,), 5, 0, 0.0, 1.0, 0, 0.0, (), None, None, None, (2**40,))),
        (18, None),
        (18, ((1,), (1, 2))),
        (18, ((1, ("a",)),)),
        (18, ((1.0, (1,)),)),
        (18, ((1, (1,), ((b"\0\1",) * 4)),)),
        (18, ((1, (1,), (b"\1\0", b"", b"", b"\0\0\0\0")),)),
        (35, ((1, 1, "asleep", None, None, 0, None),)),
        (49, 1, 1, 1),
        (49, 1, ((((((((((((1,),),),),),),),),),),),)),
        (32, "n", (), {"a": msgpack.ExtType(1, b"")}),
        (32, "n", (), {"a": msgpack.Timestamp(1)}),
        (2, ("a",) * (MAX_ARRAY + 1)),
        (49, 1, ({},) * 1000),
    ],
)
def test_what_is_no_message_is_refused(values: Any) -> None:
    with pytest.raises(WireError):
        decode_message(msgpack.packb(values))


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", b"\x91", b"\x92\x32\x01\x00", b"\x91\xa1\xff", b"\xdd\xff\xff\xff\xff"]
)
def test_what_is_not_msgpack_is_refused(payload: bytes) -> None:
    with pytest.raises(WireError):
        decode_message(payload)


def test_the_secret_is_not_shown() -> None:
    assert "hush" not in repr(messages.Start("engine", {}, 0, 0, b"hush"))


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidRequestError("mode: no", param="mode"),
        errors.PromptTooLongError("long"),
        errors.OverloadedError("full", retry_after=7),
        errors.OverloadedError("not serving", retry_after=2, is_serving=False),
        RuntimeError("resumed before"),
    ],
)
def test_errors_arrive_as_they_were(error: Exception) -> None:
    message = messages.Result(1, None, RemoteError.of(error))
    arrived = decode_message(encode_message(message))
    assert isinstance(arrived, messages.Result)
    assert arrived.error is not None
    again = arrived.error.exception()
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize("name", ["SystemExit", "__builtins__", "ClassVar", "ZeroDivisionError"])
def test_other_errors_arrive_as_engine_errors(name: str) -> None:
    error = RemoteError(name, "text", {"param": 5}).exception()
    assert type(error) is errors.EngineError
    assert str(error) == f"{name}: text"
