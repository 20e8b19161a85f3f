"""How often a process may be started again."""

from __future__ import annotations

from triolet.cluster.restart_budget import LONGEST_DELAY_SECONDS, WINDOW_SECONDS, RestartBudget


def test_delays_double_up_to_a_longest() -> None:
    budget = RestartBudget(20)
    delays = [budget.spend(0.0) for _ in range(20)]
    assert delays[:7] == [0.5, 1, 2, 4, 8, 16, LONGEST_DELAY_SECONDS]
    assert set(delays[7:]) == {LONGEST_DELAY_SECONDS}
    assert budget.spend(0.0) is None


def test_deaths_are_forgotten_after_ten_minutes() -> None:
    budget = RestartBudget(2)
    assert [budget.spend(now) for now in (0.0, 100.0)] == [0.5, 1]
    assert budget.spend(200.0) is None
    assert budget.spend(100.0 + WINDOW_SECONDS) == 1.0
    assert budget.spend(1000.0 + WINDOW_SECONDS) == 0.5


def test_no_restarts_are_none() -> None:
    assert RestartBudget(0).spend(0.0) is None
