"""Whose request is whose, on an engine with several front ends."""

from __future__ import annotations

import anyio
import pytest
from tests.triolet.cluster.fake_rank import FakeRankClient, make_request

from triolet.cluster.frames import WireError, encode_frame
from triolet.cluster.messages import Outputs, encode_message
from triolet.cluster.rank_requests import FrontEndRequests, RankRequests
from triolet.request import FinishReason, TokenLogprobs, TokenOutput

pytestmark = pytest.mark.anyio


class Front:
    """A front end, and what it was sent."""

    def __init__(self) -> None:
        self.messages: list[Outputs] = []
        self.requests = FrontEndRequests(self.messages.append)

    @property
    def outputs(self) -> list[TokenOutput]:
        return [output for message in self.messages for output in message.outputs]

    def tokens(self, request_id: int) -> list[int]:
        return [
            token for output in self.outputs if output.request_id == request_id for token in output.token_ids
        ]


def make() -> tuple[FakeRankClient, RankRequests]:
    client = FakeRankClient()
    return client, RankRequests(client, lambda: None)


async def deliver(requests: RankRequests) -> None:
    """Hand out what there is."""
    async with anyio.create_task_group() as task_group:
        task_group.start_soon(requests.hand_out)
        await anyio.wait_all_tasks_blocked()
        task_group.cancel_scope.cancel()


async def test_each_front_end_has_its_requests_by_its_own_ids_in_one_message_a_step() -> None:
    client, requests = make()
    one, two = Front(), Front()
    requests.add(one.requests, make_request(5))
    requests.add(one.requests, make_request(6))
    requests.add(two.requests, make_request(5, max_tokens=2))
    assert len(requests) == 3
    assert requests.num_waiting_tokens == 12
    async with anyio.create_task_group() as task_group:
        await task_group.start(client.run)
        task_group.start_soon(requests.hand_out)
        await requests.wait_idle()
        task_group.cancel_scope.cancel()
    assert [len(message.outputs) for message in one.messages] == [2, 2, 2]
    assert [len(message.outputs) for message in two.messages] == [1, 1]
    assert one.tokens(5) == one.tokens(6) == [0, 1, 2]
    assert two.tokens(5) == [0, 1]
    assert [output.finish_reason for output in two.outputs] == [None, FinishReason.LENGTH]
    assert requests.num_waiting_tokens == 0


async def test_what_was_said_of_the_prompt_is_said_once() -> None:
    client, requests = make()
    front = Front()
    requests.add(front.requests, make_request(7))
    (own_id,) = client.requests
    for reason in (None, None, FinishReason.LENGTH):
        client._give(
            TokenOutput(request_id=own_id, token_ids=(1,), num_cached_tokens=8, finish_reason=reason)
        )
        await deliver(requests)
    assert [output.num_cached_tokens for output in front.outputs] == [8, 0, 8]
    assert front.tokens(7) == [1, 1, 1]


async def test_log_probabilities_are_handed_on() -> None:
    client, requests = make()
    front = Front()
    requests.add(front.requests, make_request(7))
    (own_id,) = client.requests
    logprobs = (TokenLogprobs((1,), (-0.5,), 1),)
    for _ in range(2):
        client._give(TokenOutput(request_id=own_id, token_ids=(1,), logprobs=logprobs))
        await deliver(requests)
    assert front.outputs == [TokenOutput(request_id=7, token_ids=(1,), logprobs=logprobs)] * 2


async def test_a_lost_front_end_takes_its_requests_along() -> None:
    client, requests = make()
    one, two = Front(), Front()
    requests.add(one.requests, make_request(1))
    client._step()
    await deliver(requests)
    begun, *_ = client.requests
    requests.add(one.requests, make_request(2))
    requests.add(two.requests, make_request(1))
    requests.leave(one.requests)
    requests.leave(one.requests)
    assert len(client.requests) == len(requests) == 1
    (waiting,) = client.moved
    assert waiting != begun, "that one ends here; of the other nothing was said, so it may be had elsewhere"
    assert requests.num_waiting_tokens == 4
    (own_id,) = client.requests
    requests.abort(two.requests, [1, 99], is_moved=True)
    assert client.requests == {}
    assert client.moved == [waiting, own_id]
    await requests.wait_idle()


async def test_what_cannot_be_taken_in_is_answered() -> None:
    _, requests = make()
    front = Front()
    requests.add(front.requests, make_request(1, num_prompt_tokens=51))
    (output,) = front.outputs
    assert (output.request_id, output.finish_reason) == (1, FinishReason.ERROR)
    assert (output.error, output.error_param) == ("too long", "prompt")
    assert len(requests) == 0
    requests.add(front.requests, make_request(1))
    with pytest.raises(WireError, match="request 1"):
        requests.add(front.requests, make_request(1))


async def test_at_the_end_of_a_drain_only_what_has_begun_is_told_so() -> None:
    client, requests = make()
    front = Front()
    requests.add(front.requests, make_request(1))
    client._step()
    await deliver(requests)
    requests.add(front.requests, make_request(2))
    requests.end_all("rank 0: told to end")
    last = front.outputs[-1]
    assert (last.request_id, last.finish_reason) == (1, FinishReason.ERROR)
    assert (last.error, last.is_engine_dead) == ("rank 0: told to end", True)
    assert len(requests) == len(client.requests) == 0
    assert len(client.moved) == 1, "the one of which nothing was said is counted where it is had next"


async def test_after_that_nothing_is_said_of_what_can_be_had_elsewhere() -> None:
    client, requests = make()
    front = Front()
    requests.add(front.requests, make_request(1))
    client._step()  # its token is not handed out yet
    requests.end_all("rank 0: told to end")
    requests.add(front.requests, make_request(2))
    await deliver(requests)
    assert front.messages == []
    assert client.requests == {}


async def test_a_request_of_whose_prompt_something_was_said_has_begun() -> None:
    client, requests = make()
    front = Front()
    requests.add(front.requests, make_request(1))
    (own_id,) = client.requests
    client._give(TokenOutput(request_id=own_id, prompt_logprobs=(TokenLogprobs((7,), (-1.0,), 1),)))
    await deliver(requests)
    assert requests.num_waiting_tokens == 4
    requests.end_all("rank 0: told to end")
    assert [output.finish_reason for output in front.outputs] == [None, FinishReason.ERROR]


async def test_outputs_of_a_request_that_was_aborted_meanwhile_are_dropped() -> None:
    client, requests = make()
    front = Front()
    requests.add(front.requests, make_request(1))
    client._step()
    requests.abort(front.requests, [1])
    await deliver(requests)
    assert front.messages == []


async def test_outputs_too_long_for_one_message_go_in_several_and_one_too_long_for_any_fails() -> None:
    """What the link does with them: it takes no more than so many bytes at once."""
    client, requests = make()
    taken: list[Outputs] = []

    def post(message: Outputs) -> None:
        size = sum(len(output.prompt_logprobs or ()) for output in message.outputs)
        if size > 10:
            raise WireError(f"{size} are too long")
        taken.append(message)

    front = FrontEndRequests(post)
    for number in range(4):
        requests.add(front, make_request(number))
    told = TokenLogprobs((7,), (-1.0,), 1)
    sizes = dict(zip(client.requests, (4, 6, 11, 9), strict=True))
    for own_id, size in sizes.items():
        client._give(TokenOutput(request_id=own_id, token_ids=(1,), prompt_logprobs=(told,) * size))
    await deliver(requests)
    outputs = {output.request_id: output for message in taken for output in message.outputs}
    assert sorted(outputs) == [0, 1, 2, 3]
    assert [outputs[number].finish_reason for number in range(4)] == [None, None, FinishReason.ERROR, None]
    assert outputs[2].error_param == "prompt_logprobs"
    assert "ask for fewer: 11 are too long" in str(outputs[2].error)
    assert len(requests) == len(client.requests) == 3


@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_log_probabilities_of_the_longest_prompts_end_a_request_and_no_link() -> None:
    taken: list[Outputs] = []
    client, requests = make()

    def post(message: Outputs) -> None:
        encode_frame(encode_message(message))
        taken.append(message)

    requests.add(FrontEndRequests(post), make_request(1))
    position = TokenLogprobs(tuple(range(21)), (-1.0,) * 21, 1)
    (own_id,) = client.requests
    client._give(TokenOutput(request_id=own_id, token_ids=(1,), prompt_logprobs=(position,) * 2**17))
    await deliver(requests)
    ((output,),) = [message.outputs for message in taken]
    assert output.error_param == "prompt_logprobs"
