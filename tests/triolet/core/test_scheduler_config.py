from __future__ import annotations

from tests.fakes import FakeRunner
from tests.triolet.core.test_runner import BesideRunner

from triolet.args import EngineArgs
from triolet.core.scheduler_config import ROW_GROUP, scheduler_config


def test_the_limits_are_those_of_the_options_and_of_the_runner() -> None:
    args = EngineArgs(max_num_seqs=3, speculation="suffix", num_speculative_tokens=5)
    config = scheduler_config(args, FakeRunner(max_model_len=99))
    assert (config.max_num_seqs, config.max_model_len) == (3, 99)
    assert (config.speculation, config.num_speculative_tokens) == ("suffix", 5)


def test_rows_are_computed_in_small_groups_where_steps_do_not_overlap() -> None:
    assert scheduler_config(EngineArgs(), FakeRunner()).row_group == ROW_GROUP
    assert scheduler_config(EngineArgs(), BesideRunner()).row_group is None
