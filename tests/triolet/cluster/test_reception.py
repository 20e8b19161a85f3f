"""Ports that other machines dial: had before anything starts, or the option to change is named."""

from __future__ import annotations

import socket

import pytest
from tests.ports import free_port

from triolet.args import ServeArgs
from triolet.cluster.reception import check_ports
from triolet.errors import UsageError


def args(port: int, **options: object) -> ServeArgs:
    return ServeArgs(data_parallel_size=2, data_parallel_size_local=1, data_parallel_rpc_port=port, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("offset", [0, 1, 2])
def test_each_of_the_ports_is_needed(offset: int) -> None:
    port = free_port(4)
    with socket.create_server(("127.0.0.1", port + offset)):
        with pytest.raises(UsageError, match="choose another --data-parallel-rpc-port") as error:
            check_ports(args(port, api_server_count=2).launch_shape())
        check_ports(args(port + offset + 1).launch_shape())
    assert error.value.param == "data_parallel_rpc_port"
    assert f"cannot listen on 127.0.0.1 port {port + offset}" in str(error.value)


def test_an_address_of_another_machine_is_told_as_such() -> None:
    with pytest.raises(UsageError, match="give an address of this machine as --data-parallel-address"):
        check_ports(args(free_port(2), data_parallel_address="192.0.2.1").launch_shape())


def test_without_other_machines_no_port_is_needed() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        check_ports(ServeArgs(data_parallel_size=2, data_parallel_rpc_port=port).launch_shape())
