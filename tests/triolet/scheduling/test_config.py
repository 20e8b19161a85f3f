from __future__ import annotations

import pytest
from tests.triolet.scheduling.fake_runner import make_config, make_request

from triolet.errors import InvalidRequestError, PromptTooLongError


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_blocks_are_counted_up(num_tokens: int, num_blocks: int) -> None:
    config = make_config(block_size=4)
    assert config.num_blocks_for(num_tokens, config.layer_groups[0]) == num_blocks


def test_a_window_group_needs_no_more_than_the_window_and_what_is_in_flight() -> None:
    config = make_config(
        block_size=4, windows=(5,), num_blocks=5, max_num_batched_tokens=4, max_model_len=999
    )
    assert config.num_blocks_for(100, config.layer_groups[0]) == 4, "12 positions touch 4 blocks at most"
    assert config.max_length_of(make_request(0, 900, 9)) == 909


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens", "max_length"), [(10, 7, 17), (10, 1_000_000, 20), (19, 1, 20)]
)
def test_the_most_tokens_of_a_request(num_prompt_tokens: int, max_tokens: int, max_length: int) -> None:
    config = make_config(max_model_len=20)
    assert config.max_length_of(make_request(0, num_prompt_tokens, max_tokens)) == max_length


def test_a_request_that_can_never_be_served_is_refused() -> None:
    with pytest.raises(PromptTooLongError, match="context of 20 tokens"):
        make_config(max_model_len=20).max_length_of(make_request(0, 20, 1))
    with pytest.raises(PromptTooLongError, match="need 5 KV blocks, there are 4"):
        make_config(num_blocks=4, block_size=4).max_length_of(make_request(1, 10, 8))
    with pytest.raises(InvalidRequestError, match="at least one token"):
        make_config().max_length_of(make_request(0, 0, 1))
