"""Which processes the options amount to, and which combinations are refused, by which words."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.args import EngineArgs, ServeArgs
from triolet.errors import UsageError
from triolet.launch_shape import LaunchShape


def shape_of(**options: Any) -> LaunchShape:
    return ServeArgs(**options).launch_shape()


def test_nothing_asked_for_is_one_process() -> None:
    shape = shape_of()
    assert (shape.mode, shape.num_api_servers, shape.local_ranks) == ("single", 1, range(1))
    assert shape.is_one_process
    assert not shape.needs_secret


@pytest.mark.parametrize(
    ("options", "mode", "local", "served", "remote"),
    [
        ({"separate_engine": True}, "separate", range(1), range(1), range(0)),
        ({"data_parallel_size": 4}, "internal", range(4), range(4), range(0)),
        (
            {"data_parallel_size": 4, "data_parallel_size_local": 1},
            "internal", range(1), range(4), range(1, 4),
        ),
        ({"data_parallel_size_local": 0}, "internal", range(0), range(1), range(1)),
        (
            {"data_parallel_size": 4, "data_parallel_size_local": 0},
            "internal", range(0), range(4), range(4),
        ),
        ({"data_parallel_size": 4, "data_parallel_rank": 3}, "external", range(3, 4), range(3, 4), range(0)),
        (
            {"data_parallel_size": 4, "data_parallel_external_lb": True, "data_parallel_rank": 0},
            "external", range(1), range(1), range(0),
        ),
        (
            {"data_parallel_size": 4, "data_parallel_hybrid_lb": True, "data_parallel_size_local": 2},
            "hybrid", range(2), range(2), range(0),
        ),
        (
            {"data_parallel_size": 4, "data_parallel_start_rank": 2, "data_parallel_size_local": 2},
            "hybrid", range(2, 4), range(2, 4), range(0),
        ),
        (
            {"data_parallel_size": 2, "data_parallel_hybrid_lb": True, "data_parallel_size_local": 2},
            "internal", range(2), range(2), range(0),
        ),
        ({"headless": True}, "headless", range(1), range(0), range(0)),
        (
            {"headless": True, "data_parallel_size": 4, "data_parallel_start_rank": 1},
            "headless", range(1, 4), range(0), range(0),
        ),
        (
            {"headless": True, "data_parallel_size": 4, "data_parallel_start_rank": 1,
             "data_parallel_size_local": 2},
            "headless", range(1, 3), range(0), range(0),
        ),
        ({"data_parallel_size": 4, "nnodes": 2}, "internal", range(2), range(4), range(2, 4)),
        (
            {"data_parallel_size": 4, "nnodes": 2, "node_rank": 1, "headless": True},
            "headless", range(2, 4), range(0), range(0),
        ),
        (
            {"data_parallel_size": 4, "nnodes": 2, "node_rank": 1, "data_parallel_hybrid_lb": True},
            "hybrid", range(2, 4), range(2, 4), range(0),
        ),
        (
            {"data_parallel_size": 2, "nnodes": 2, "node_rank": 1, "data_parallel_external_lb": True},
            "external", range(1, 2), range(1, 2), range(0),
        ),
        ({"tensor_parallel_size": 2, "nnodes": 2}, "single", range(1), range(1), range(0)),
        (
            {"tensor_parallel_size": 2, "nnodes": 2, "node_rank": 1, "headless": True},
            "worker", range(1), range(0), range(0),
        ),
        (
            {"tensor_parallel_size": 2, "data_parallel_size": 2, "nnodes": 4, "node_rank": 2,
             "headless": True, "data_parallel_address": "10.0.0.1"},
            "headless", range(1, 2), range(0), range(0),
        ),
    ],
)  # fmt: skip
def test_shapes(options: dict[str, Any], mode: str, local: range, served: range, remote: range) -> None:
    shape = shape_of(**options)
    assert (shape.mode, shape.local_ranks, shape.served_ranks) == (mode, local, served)
    assert list(shape.remote_ranks) == list(remote)
    assert shape.needs_secret == (mode == "headless" or len(remote) > 0)


def test_api_servers_are_counted_where_there_is_http() -> None:
    assert shape_of(api_server_count=3).num_api_servers == 3
    assert not shape_of(api_server_count=3).is_one_process
    assert shape_of(headless=True).num_api_servers == 0
    assert shape_of(headless=True, api_server_count=0).num_api_servers == 0


def test_where_machines_meet() -> None:
    assert shape_of().head_host == "127.0.0.1"
    assert shape_of(master_addr="10.0.0.1", nnodes=2, data_parallel_size=2).head_host == "10.0.0.1"
    assert shape_of(data_parallel_address="10.0.0.2", data_parallel_rpc_port=5).head_host == "10.0.0.2"
    assert shape_of(data_parallel_rpc_port=5).head_port == 5


def test_a_rank_over_two_machines_knows_its_share() -> None:
    shape = shape_of(tensor_parallel_size=4, nnodes=2)
    assert (shape.num_nodes_per_rank, shape.node_rank_in_rank, shape.num_local_workers) == (2, 0, 2)
    shape = shape_of(tensor_parallel_size=4, nnodes=2, node_rank=1, headless=True)
    assert (shape.node_rank_in_rank, shape.num_local_workers) == (1, 2)


@pytest.mark.parametrize(
    ("options", "words", "param"),
    [
        ({"headless": True, "api_server_count": 2}, "--api-server-count 2 and --head", "api_server_count"),
        ({"api_server_count": 0}, "say --headless", "api_server_count"),
        (
            {"headless": True, "data_parallel_size": 2, "data_parallel_hybrid_lb": True},
            "--data-parallel-hybrid-lb and --headless exclude each other", "headless",
        ),
        (
            {"headless": True, "data_parallel_size": 2, "data_parallel_rank": 0},
            "--data-parallel-rank and --headless exclude each other", "headless",
        ),
        (
            {"data_parallel_size": 2, "data_parallel_external_lb": True, "data_parallel_hybrid_lb": True},
            "--data-parallel-external-lb and --data-parallel-hybrid-lb exclude", "data_parallel_hybrid_lb",
        ),
        (
            {"data_parallel_size": 2, "data_parallel_rank": 1, "data_parallel_start_rank": 1},
            "--data-parallel-rank and --data-parallel-start-rank exclude", "data_parallel_start_rank",
        ),
        ({"data_parallel_rank": 0}, "--data-parallel-rank needs --data-parallel-size", "data_parallel_size"),
        ({"data_parallel_hybrid_lb": True}, "needs --data-parallel-size above 1", "data_parallel_size"),
        (
            {"data_parallel_size": 2, "data_parallel_external_lb": True},
            "needs --data-parallel-rank", "data_parallel_rank",
        ),
        (
            {"data_parallel_size": 2, "data_parallel_rank": 2},
            r"must be in \[0, 1\] with --data-parallel-size 2, got 2", "data_parallel_rank",
        ),
        ({"data_parallel_size": 2, "data_parallel_rank": -1}, r"in \[0, 1\]", "data_parallel_rank"),
        (
            {"data_parallel_size": 2, "data_parallel_rank": 1, "data_parallel_size_local": 2},
            "contradicts --data-parallel-rank", "data_parallel_size_local",
        ),
        (
            {"data_parallel_size": 2, "data_parallel_hybrid_lb": True},
            "needs --data-parallel-size-local", "data_parallel_size_local",
        ),
        (
            {"data_parallel_size": 2, "data_parallel_start_rank": 1},
            "--data-parallel-start-rank needs --data-parallel-size-local", "data_parallel_size_local",
        ),
        ({"headless": True, "data_parallel_size_local": 0}, r"in \[1, 1\]", "data_parallel_size_local"),
        ({"headless": True, "data_parallel_size_local": -1}, r"in \[1, 1\]", "data_parallel_size_local"),
        ({"data_parallel_size_local": 2}, r"in \[1, 1\]|in \[0, 1\]", "data_parallel_size_local"),
        (
            {"headless": True, "data_parallel_size": 2, "data_parallel_start_rank": 2},
            r"in \[0, 1\] with --data-parallel-size 2", "data_parallel_start_rank",
        ),
        (
            {"headless": True, "data_parallel_size": 4, "data_parallel_start_rank": 3,
             "data_parallel_size_local": 2},
            r"in \[1, 1\] with --data-parallel-size 4 and first rank 3", "data_parallel_size_local",
        ),
        ({"nnodes": 2, "node_rank": 2, "data_parallel_size": 2}, r"must be in \[0, 1\]", "node_rank"),
        ({"nnodes": 2, "data_parallel_size": 3}, "cannot be divided over --nnodes 2", "nnodes"),
        (
            {"nnodes": 2, "data_parallel_size": 3, "tensor_parallel_size": 2},
            "does not fit evenly", "tensor_parallel_size",
        ),
        ({"nnodes": 2, "data_parallel_size": 2, "node_rank": 1}, "add --headless", "node_rank"),
        ({"nnodes": 2, "tensor_parallel_size": 2, "node_rank": 1}, "add --headless", "node_rank"),
        (
            {"data_parallel_size": 2, "data_parallel_size_local": 1, "data_parallel_rpc_port": 65534,
             "api_server_count": 2},
            "ports up to 65536 are needed.*choose 65533 or less", "data_parallel_rpc_port",
        ),
        ({"data_parallel_address": "a..b"}, "'a..b' is no address", "data_parallel_address"),
        ({"master_addr": "a..b"}, "'a..b' is no address", "master_addr"),
        (
            {"nnodes": 4, "tensor_parallel_size": 2, "data_parallel_size": 2, "master_port": 65535},
            "ports up to 65536 are needed.*choose 65534 or less", "master_port",
        ),
        (
            {"nnodes": 4, "tensor_parallel_size": 2, "data_parallel_size": 2},
            "2 ranks over 2 machines meets on the first of its own", "data_parallel_address",
        ),
        ({"separate_engine": True, "max_model_len": "auto"}, "needs --kv-cache-bytes", "max_model_len"),
        ({"data_parallel_size": 2, "max_model_len": "auto"}, "needs --kv-cache-bytes", "max_model_len"),
    ],
)  # fmt: skip
def test_contradictions_name_the_flags_and_the_way_out(
    options: dict[str, Any], words: str, param: str
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        ServeArgs(**options)
    assert caught.value.param == param


def test_what_has_room_or_is_alone_is_not_refused() -> None:
    shape_of(data_parallel_size=2, data_parallel_size_local=1, data_parallel_rpc_port=65534)
    shape_of(data_parallel_size=2, data_parallel_rpc_port=65535)
    shape_of(data_parallel_size=2, data_parallel_rank=1, max_model_len="auto")
    shape_of(data_parallel_size=2, max_model_len="auto", kv_cache_bytes=10**6)


def test_the_library_has_the_same_shapes() -> None:
    assert EngineArgs(data_parallel_size=2).launch_shape().mode == "internal"
    with pytest.raises(UsageError, match="--data-parallel-rank"):
        EngineArgs(data_parallel_size=2, data_parallel_rank=5)


small = st.integers(0, 4)


@given(
    size=st.integers(1, 4),
    tensor=st.integers(1, 4),
    nnodes=st.integers(1, 4),
    local=st.none() | small,
    start=st.none() | small,
    external=st.booleans(),
    hybrid=st.booleans(),
    headless=st.booleans(),
)
def test_what_is_not_refused_is_consistent(
    size: int,
    tensor: int,
    nnodes: int,
    local: int | None,
    start: int | None,
    external: bool,
    hybrid: bool,
    headless: bool,
) -> None:
    """Over all machines of a launch: whatever is accepted names ranks that exist and serves what it has."""
    for node_rank in range(nnodes):
        with contextlib.suppress(UsageError):
            shape = shape_of(
                data_parallel_size=size,
                tensor_parallel_size=tensor,
                nnodes=nnodes,
                node_rank=node_rank,
                data_parallel_size_local=local,
                data_parallel_start_rank=start,
                data_parallel_external_lb=external,
                data_parallel_hybrid_lb=hybrid,
                headless=headless,
            )
            assert set(shape.local_ranks) | set(shape.served_ranks) <= set(range(size))
            assert (shape.num_api_servers == 0) == (shape.mode in ("headless", "worker")) == headless
            assert set(shape.local_ranks) <= set(shape.served_ranks) or headless
            assert 0 <= shape.node_rank_in_rank < shape.num_nodes_per_rank


@given(size=st.integers(1, 4), tensor=st.sampled_from([1, 2, 4]), nnodes=st.sampled_from([1, 2, 4]))
def test_the_machines_of_a_launch_hold_every_rank_once(size: int, tensor: int, nnodes: int) -> None:
    shapes = []
    for node_rank in range(nnodes):
        try:
            shapes.append(
                shape_of(
                    data_parallel_size=size,
                    tensor_parallel_size=tensor,
                    nnodes=nnodes,
                    node_rank=node_rank,
                    headless=node_rank > 0,
                    data_parallel_address="10.0.0.1",
                )
            )
        except UsageError:
            assert size * tensor % nnodes or size % nnodes
            return
    ranks = [rank for shape in shapes if shape.mode != "worker" for rank in shape.local_ranks]
    assert sorted(ranks) == list(range(size))
    assert sum(shape.num_local_workers for shape in shapes) == size * tensor
