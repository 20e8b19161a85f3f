"""Single options of several processes; what they mean together is tested with the shape of a launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from triolet.args import EngineArgs
from triolet.errors import UsageError
from triolet.parallel_args import ParallelArgs


def test_the_engine_has_them_and_none_is_set() -> None:
    args = EngineArgs()
    assert isinstance(args, ParallelArgs)
    assert (args.data_parallel_size, args.tensor_parallel_size, args.nnodes) == (1, 1, 1)
    assert not args.separate_engine


def test_a_secret_file_may_be_a_plain_string() -> None:
    options: dict[str, Any] = {"cluster_secret_file": "~/secret"}
    assert EngineArgs(**options).cluster_secret_file == Path("~/secret").expanduser()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("data_parallel_size", 1025),
        ("master_port", 0),
        ("liveness_timeout", 0.0),
        ("engine_restart_budget", -1),
    ],
)
def test_ranges(name: str, value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        EngineArgs(**{name: value})
    assert caught.value.param == name
