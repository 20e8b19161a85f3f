"""What a server tells of itself is read as numbers."""

from __future__ import annotations

import pytest
from bench.monitor import Metrics, Monitor
from tests.openai_server import canned_server

TEXT = """# HELP triolet_steps_total Steps of the engine.
# TYPE triolet_steps_total counter
triolet_steps_total{engine="0",model_name="m"} 3.0
triolet_steps_total{engine="1",model_name="m"} 4.0
triolet_request_outcome_total{finished_reason="abort",model_name="m"} 2.0
triolet_request_outcome_total{finished_reason="stop",model_name="m"} 5.0
process_open_fds 1e+01
"""


def test_samples_are_summed_by_name_and_label() -> None:
    metrics = Metrics.parse(TEXT)
    assert metrics.total("triolet_steps_total") == 7
    assert metrics.total("triolet_request_outcome_total", '"abort"') == 2
    assert metrics.total("process_open_fds") == 10
    assert metrics.total("nothing") == 0


def test_what_the_server_does_not_answer_is_an_error() -> None:
    with canned_server() as server:
        monitor = Monitor(server.url.removesuffix("/v1"))
        with pytest.raises(RuntimeError, match="/load: status 404"):
            monitor.load()
        monitor.close()
