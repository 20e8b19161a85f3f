"""Which shards run where, and where they meet."""

from __future__ import annotations

import pytest

from triolet.args import EngineArgs, ServeArgs
from triolet.cluster.shard_launch import ShardLaunch
from triolet.errors import UsageError


def test_a_rank_that_is_whole_has_none() -> None:
    assert ShardLaunch.of(EngineArgs(), 0) is None


def test_shards_of_one_machine_meet_on_any_port_of_the_loopback() -> None:
    launch = ShardLaunch.of(EngineArgs(tensor_parallel_size=4, cluster_join_timeout=7.0), 0)
    assert launch is not None
    assert (launch.first, launch.num_local, launch.host, launch.port) == (0, 4, "127.0.0.1", 0)
    assert ShardLaunch(**launch.plain()) == launch
    place = launch.place(2, 5000)
    assert (place.index, place.count, place.port, place.join_timeout) == (2, 4, 5000, 7.0)
    with launch.listen() as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize(("node_rank", "first", "rank"), [(0, 0, 0), (1, 2, 0), (2, 0, 1), (3, 2, 1)])
def test_ranks_over_machines_meet_each_on_the_first_of_its_own(node_rank: int, first: int, rank: int) -> None:
    args = ServeArgs(
        tensor_parallel_size=4,
        data_parallel_size=2,
        nnodes=4,
        node_rank=node_rank,
        headless=node_rank > 0,
        master_addr=f"10.1.2.{2 * rank}",
        master_port=600,
        data_parallel_address="10.1.2.0",
    )
    launch = ShardLaunch.of(args, rank)
    assert launch is not None
    assert (launch.first, launch.num_local) == (first, 2)
    assert (launch.host, launch.port) == (f"10.1.2.{2 * rank}", 600 + rank)


def test_an_address_that_is_not_ours_is_refused() -> None:
    args = EngineArgs(tensor_parallel_size=2, nnodes=2, master_addr="192.0.2.1")
    launch = ShardLaunch.of(args, 0)
    assert launch is not None
    with pytest.raises(UsageError, match=r"cannot meet at 192.0.2.1:29501: .*--master-addr must be"):
        launch.listen()
