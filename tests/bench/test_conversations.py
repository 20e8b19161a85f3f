from __future__ import annotations

import pytest
from bench.conversations import KINDS, make_conversation


@pytest.mark.parametrize("kind", KINDS)
def test_conversations_are_the_same_in_every_run_and_end_with_the_user(kind: str) -> None:
    conversations = [make_conversation(kind, index) for index in range(40)]
    assert conversations == [make_conversation(kind, index) for index in range(40)]
    assert all(conversation[-1]["role"] == "user" for conversation in conversations)
    assert len({conversation[-1]["content"] for conversation in conversations}) >= (
        3 if kind == "turns" else 10
    )


def test_code_is_whole_functions_as_far_as_there_is_room() -> None:
    assert "def " in make_conversation("code", 1)[0]["content"]


def test_json_is_asked_for_with_what_it_is_to_say() -> None:
    assert "works as a" in make_conversation("json", 2)[0]["content"]
