"""The hand-made way of token outputs agrees with the classes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.cluster.frames import WireError
from triolet.cluster.output_rows import decode_rows, encode_rows
from triolet.cluster.packing import pack, unpack
from triolet.request import FinishReason, TokenLogprobs, TokenOutput

TOKEN_IDS = st.integers(0, 2**32 - 1)


@st.composite
def token_logprobs(draw: st.DrawFn) -> TokenLogprobs:
    token_ids = draw(st.lists(TOKEN_IDS, max_size=4))
    logprobs = draw(st.lists(st.floats(max_value=0), min_size=len(token_ids), max_size=len(token_ids)))
    return TokenLogprobs(tuple(token_ids), tuple(logprobs), draw(TOKEN_IDS))


MANY_LOGPROBS = st.none() | st.lists(token_logprobs(), max_size=20).map(tuple)
OUTPUTS = st.builds(
    TokenOutput,
    request_id=st.integers(0, 2**63),
    token_ids=st.lists(TOKEN_IDS, max_size=20).map(tuple),
    logprobs=MANY_LOGPROBS,
    finish_reason=st.none() | st.sampled_from(FinishReason),
    error=st.none() | st.text(),
    num_cached_tokens=st.integers(0, 2**40),
    num_computed_prompt_tokens=st.integers(0, 2**40),
    prompt_logprobs=MANY_LOGPROBS,
)


@given(st.lists(OUTPUTS).map(tuple))
def test_outputs_come_back(outputs: tuple[TokenOutput, ...]) -> None:
    assert decode_rows(unpack(pack(encode_rows(outputs)))) == outputs


def test_an_output_of_tokens_alone_is_a_pair() -> None:
    assert encode_rows((TokenOutput(request_id=7, token_ids=(1, 2)),)) == [(7, (1, 2))]
    [output] = decode_rows(((7, (1, 2)),))
    expected = TokenOutput(request_id=7, token_ids=(1, 2))
    assert (output, repr(output)) == (expected, repr(expected))


def test_too_many_outputs_cannot_be_sent_at_once() -> None:
    with pytest.raises(WireError, match="5000 outputs, at most 4096 at once"):
        encode_rows((TokenOutput(request_id=1),) * 5000)


def test_token_ids_that_are_none_cannot_be_sent() -> None:
    with pytest.raises(WireError, match="cannot be sent"):
        encode_rows((TokenOutput(request_id=1, logprobs=(TokenLogprobs((-1,), (0.0,), 1),) * 20),))
