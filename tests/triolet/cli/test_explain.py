"""What ``--explain`` says of each shape."""

from __future__ import annotations

from typing import Any

import pytest

from triolet.args import ServeArgs
from triolet.cli.explain import explain


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ({}, ["shape: single (one process: HTTP and engine)", "  1 x HTTP server with the engine in it"]),
        ({"separate_engine": True}, ["  1 x engine (rank 0)"]),
        ({"api_server_count": 2}, ["shape: single (one engine, which all API servers share)"]),
        (
            {"data_parallel_size": 4, "data_parallel_size_local": 2, "data_parallel_address": "10.0.0.1",
             "api_server_count": 2},
            [
                "ranks: 4 in all; here ranks 0 to 1",
                "  2 x API server, all on one port",
                "other machines join at 10.0.0.1:29550",
                "their engines connect to ports 29551 to 29552 as well",
                "waits for ranks 2 to 3 from headless machines",
                "needs the same --cluster-secret-file or TRIOLET_CLUSTER_SECRET on every machine",
            ],
        ),
        (
            {"headless": True, "data_parallel_size": 2, "data_parallel_start_rank": 1},
            ["  1 x launcher, which watches the engines", "joins the head at 127.0.0.1:29550"],
        ),
        (
            {"tensor_parallel_size": 4, "nnodes": 2, "node_rank": 1, "headless": True},
            ["  2 x tensor parallel worker", "tensor parallel processes meet at 127.0.0.1:29501"],
        ),
        ({"tensor_parallel_size": 2}, ["  1 x tensor parallel worker for each engine"]),
        ({"data_parallel_size_local": 0}, ["  0 x engine (no rank)"]),
        ({"uds": "/run/x"}, ["HTTP on /run/x"]),
    ],
)  # fmt: skip
def test_lines(options: dict[str, Any], lines: list[str]) -> None:
    said = list(explain(ServeArgs(**options)))
    assert set(lines) <= set(said), said
    assert ("HTTP on 127.0.0.1:8000" in said) == ("headless" not in options and "uds" not in options)
