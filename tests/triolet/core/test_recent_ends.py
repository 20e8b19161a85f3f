from __future__ import annotations

from triolet.core.recent_ends import MAX_RETRY_AFTER, NUM_RECENT, RecentEnds


def test_the_time_is_that_at_the_rate_of_the_last_ends() -> None:
    ends = RecentEnds()
    assert ends.retry_after(100, now=0.0) == 1, "nothing is known yet"
    for now in range(1000):
        ends.add(float(now))
    assert ends.retry_after(10, now=1000.0) == 10
    assert ends.retry_after(0, now=1000.0) == 1
    assert ends.retry_after(10**6, now=1000.0) == MAX_RETRY_AFTER
    assert ends.retry_after(NUM_RECENT, now=1000.0 + NUM_RECENT) == 2 * NUM_RECENT
