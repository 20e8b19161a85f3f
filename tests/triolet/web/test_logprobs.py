"""Both shapes of log probabilities: true bytes, finite numbers, offsets in code points."""

from __future__ import annotations

import json

from tests.triolet.web.fake_text import ByteTokenizer

from triolet.request import TokenLogprobs
from triolet.web.logprobs import LOWEST, ChatLogprobs, CompletionLogprobs

TEXT = "é🙂a"
POSITIONS = [
    TokenLogprobs(token_ids=(byte, byte, 65), logprobs=(-0.1, -0.1, float("-inf")), rank=1)
    for byte in TEXT.encode()
]


def test_chat_tokens_have_their_true_bytes() -> None:
    content = ChatLogprobs(ByteTokenizer()).convert(POSITIONS)["content"]
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == TEXT
    assert content[0]["token"] == "\ufffd"
    assert content[-1]["token"] == "a"
    assert [top["token"] for top in content[-1]["top_logprobs"]] == ["a", "A"]


def test_minus_infinity_is_a_number_that_json_can_hold() -> None:
    chat = ChatLogprobs(ByteTokenizer()).convert(POSITIONS)
    completion = CompletionLogprobs(ByteTokenizer()).convert(POSITIONS)
    assert chat["content"][0]["top_logprobs"][1]["logprob"] == LOWEST
    assert completion["top_logprobs"][0]["A"] == LOWEST
    json.dumps([chat, completion], allow_nan=False)


def test_completion_tokens_that_are_no_text_keep_their_bytes() -> None:
    converted = CompletionLogprobs(ByteTokenizer()).convert(POSITIONS)
    assert converted["tokens"] == [
        "bytes:\\xc3", "bytes:\\xa9", "bytes:\\xf0", "bytes:\\x9f", "bytes:\\x99", "bytes:\\x82", "a",
    ]  # fmt: skip
    assert converted["token_logprobs"] == [-0.1] * 7


def test_offsets_count_code_points_also_when_tokens_come_in_pieces() -> None:
    whole = CompletionLogprobs(ByteTokenizer()).convert(POSITIONS)["text_offset"]
    assert whole == [0, 0, 1, 1, 1, 1, 2]
    converter = CompletionLogprobs(ByteTokenizer())
    assert [converter.convert([position])["text_offset"][0] for position in POSITIONS] == whole
