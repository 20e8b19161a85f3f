"""A message of every kind, with every kind of field set and unset."""

from __future__ import annotations

from triolet.cluster import messages
from triolet.cluster.messages import Message, RemoteError
from triolet.request import (
    FinishReason,
    LogitsAdjustments,
    Request,
    RequestOptions,
    ThinkingLimit,
    TokenLogprobs,
    TokenOutput,
)
from triolet.statistics import RankState, RankStatistics

__all__ = ["EXAMPLES"]

LOAD = messages.RankLoad(1, 2, 300, 0.5, 7, None, False, True)
LOGPROBS = (TokenLogprobs((5, 6), (-0.5, -1.5), 1), TokenLogprobs((7,), (-0.25,), 4))
EXAMPLES: list[Message] = [
    messages.Start("engine", {"model": "m", "names": ("a", "b"), "n": None}, 3, 1, b"s", {"cpus": (0, 1)}),
    messages.Topology(("unix:@triolet-1", "tcp:10.0.0.1:7000")),
    messages.Drain(2.5),
    messages.Stop(),
    messages.Phase("loading"),
    messages.Ready(1, 2, 2048, 49152, 100, 32),
    messages.Beat(LOAD),
    messages.Dead(messages.RemoteError("ModelLoadError", "out of memory", {"param": None})),
    messages.Add(Request(request_id=1, prompt_token_ids=tuple(range(100)), max_tokens=5, seed=-(2**63))),
    messages.Add(
        Request(
            request_id=2,
            prompt_token_ids=(1,),
            max_tokens=5,
            seed=2**63,
            stop_token_ids=frozenset({2}),
            num_logprobs=0,
            adjustments=LogitsAdjustments(
                logit_bias=((3, -100.0), (4, 1.5)),
                banned_sequences=((1, 2), (3,)),
                allowed_token_ids=tuple(range(5000)),
                end_token_ids=frozenset(range(40)),
                grammar='{"a": 1}',
                thinking_limit=ThinkingLimit(max_tokens=9, opening=(1,), closing=(2, 3), is_open=False),
            ),
            options=RequestOptions(priority=-1, fairness_key="é", timeout=2),
        )
    ),
    messages.Abort((1, 2)),
    messages.Abort((3,), is_moved=True),
    messages.Outputs(()),
    messages.Outputs(
        (
            TokenOutput(request_id=1, token_ids=(5,)),
            TokenOutput(request_id=1, token_ids=tuple(range(20))),
            TokenOutput(request_id=2, token_ids=(5, 7), logprobs=LOGPROBS, num_cached_tokens=3),
            TokenOutput(request_id=3, finish_reason=FinishReason.ERROR, error="e", prompt_logprobs=()),
            TokenOutput(request_id=4, prompt_logprobs=LOGPROBS * 5000),
        )
    ),
    messages.Join("node-2", (2, 3), {"model": "m", "block_size": 32}),
    messages.Welcome(("tcp:[::1]:7000",)),
    messages.Refused("the configuration differs", ("model",)),
    messages.Leaving("SIGTERM", is_failure=False),
    messages.RankReports((messages.RankReport(0, 1, RankState.DOWN, LOAD, "killed", 2, None),)),
    messages.Call(5, "pause", ("abort", True)),
    messages.Result(5, {"a": (1, 2.5, None, b"x")}),
    messages.Result(6, None, RemoteError("InvalidRequestError", "no", {"param": "mode"})),
    messages.Ping(1),
    messages.Pong(1),
    messages.Unheard(2.5),
    messages.Tally(RankStatistics(rank=1, num_steps=3)),
]
