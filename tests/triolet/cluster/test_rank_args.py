"""The options of one engine among several."""

from __future__ import annotations

from pathlib import Path

from triolet.args import EngineArgs, ServeArgs
from triolet.cluster.packing import pack, unpack
from triolet.cluster.rank_args import UNLIMITED, plain_rank_args, rank_args


def test_an_engine_is_told_what_is_its_own() -> None:
    args = ServeArgs(
        model="m", cache_dir=Path("/models"), served_model_name=("a", "b"), max_model_len=512,
        block_size=16, data_parallel_size=4, data_parallel_size_local=2, num_threads=8, api_key="secret",
    )  # fmt: skip
    values = plain_rank_args(args, num_threads=3)
    assert "secret" not in str(values)
    assert rank_args(unpack(pack(values))) == EngineArgs(
        model="m", cache_dir=Path("/models"), served_model_name=("a", "b"), max_model_len=512,
        block_size=16, num_threads=3, max_num_queued_requests=UNLIMITED, max_num_queued_tokens=UNLIMITED,
    )  # fmt: skip
