from __future__ import annotations

from triolet.frontend.output_processor import FrontendStatistics
from triolet.frontend.snapshot import engine_statistics
from triolet.statistics import EngineState


def test_a_snapshot_without_a_core_is_of_zeros_and_does_not_change() -> None:
    front = FrontendStatistics(num_prompt_tokens=3)
    front.count("stop")
    snapshot = engine_statistics(EngineState.STARTING, front, None)
    front.count("stop")
    front.params_n.observe(1)
    assert (snapshot.outcomes, snapshot.num_prompt_tokens, snapshot.num_steps) == ({"stop": 1}, 3, 0)
    assert sum(snapshot.params_n.counts) == 0
    assert not snapshot.is_paused
    assert not snapshot.is_sleeping
