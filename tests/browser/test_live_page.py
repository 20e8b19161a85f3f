"""The live view: its numbers are those of ``/metrics`` and ``/health``."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from tests.browser.conftest import ToldEngine
from tests.browser.page import Page

from triolet.metrics import render_metrics
from triolet.statistics import (
    CoreStatistics,
    EngineState,
    EngineStatistics,
    Histogram,
    RankHealth,
    RankState,
    RankStatistics,
    SchedulerStatistics,
)

pytestmark = pytest.mark.slow

QUANTILES = (0.5, 0.95, 0.99)


def rank(number: int, **changes: int) -> RankStatistics:
    scheduler = SchedulerStatistics(num_running=3, num_waiting=2, num_blocks=50, num_free_blocks=37)
    return RankStatistics(rank=number, scheduler=replace(scheduler, **changes), core=CoreStatistics())


def statistics(*ranks: RankStatistics, seconds: tuple[float, ...] = ()) -> EngineStatistics:
    latency = Histogram()
    for value in seconds:
        latency.observe(value)
    return EngineStatistics(
        state=EngineState.READY,
        ranks=ranks,
        outcomes={"stop": 1234, "abort": 2, "failed": 0},
        num_prompt_tokens=0,
        num_generated_tokens=len(seconds),
        time_to_first_token=latency,
        inter_token_latency=latency,
        request_latency=Histogram(),
    )


def quantile(histogram: Histogram, share: float) -> float:
    """By the definition of Prometheus: even within a bucket, and no further than the last end."""
    counts = [0, *accumulate(histogram.counts)]
    ends = [0.0, *histogram.bounds, histogram.bounds[-1]]
    wanted = share * counts[-1]
    index = next(index for index, count in enumerate(counts) if count >= wanted and index > 0)
    return float(np.interp(wanted, counts[index - 1 : index + 1], ends[index - 1 : index + 1]))


def shown(seconds: float) -> str:
    value, unit = (1000 * seconds, "ms") if seconds < 1 else (seconds, "s")
    digits = max(0, 2 - int(np.floor(np.log10(value))))
    return f"{value:.{digits}f} {unit}"


def test_numbers_are_those_of_the_metrics(page: Page, engine: ToldEngine) -> None:
    engine.told = statistics(rank(0), rank(1, num_waiting=0))
    page.open("#engine")
    page.wait(lambda: page.text("number-running") != "0")
    page.read_again()
    metrics = httpx.get(f"{engine.url}/metrics").text
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            totals[sample.name] = totals.get(sample.name, 0) + sample.value
    assert page.text("number-running") == f"{totals['triolet_num_requests_running']:.0f}" == "6"
    assert page.text("number-waiting") == f"{totals['triolet_num_requests_waiting']:.0f}" == "2"
    assert page.text("number-kv-blocks") == f"26 of {totals['triolet_kv_cache_blocks']:.0f}" == "26 of 100"
    assert [item.text for item in page.all("#outcomes li")] == ["abort 2", "stop 1,234"]
    assert page.text("number-prefix-hits") == page.text("number-acceptance") == "–", "nothing was looked up"
    assert page.text("firstToken-50") == "–"


def test_shares_and_percentiles_are_of_what_happened_while_it_was_watched(
    page: Page, engine: ToldEngine
) -> None:
    before = {
        "num_prefix_queries": 1000,
        "num_prefix_hits": 1000,
        "num_draft_tokens": 10,
        "num_accepted_tokens": 10,
    }
    after = {
        "num_prefix_queries": 1200,
        "num_prefix_hits": 1050,
        "num_draft_tokens": 50,
        "num_accepted_tokens": 25,
    }
    old = (20.0,) * 50
    new = (0.003, 0.004, 0.004, 0.007, 0.02, 0.02, 0.03, 0.2, 0.2, 2.0)
    engine.told = statistics(rank(0, **before), seconds=old)
    page.open("#engine")
    engine.told = statistics(rank(0, **after, num_preemptions=3), seconds=old + new)
    page.wait(lambda: page.text("number-prefix-hits") != "–")
    assert page.text("number-prefix-hits") == "25.0 %"
    assert page.text("number-acceptance") == "37.5 %"
    assert page.text("number-preemptions") == "3"
    watched = Histogram()
    for value in new:
        watched.observe(value)
    for name in ("firstToken", "interToken"):
        texts = [page.text(f"{name}-{100 * share:g}") for share in QUANTILES]
        assert texts == [shown(quantile(watched, share)) for share in QUANTILES]
    assert len(page.all("#charts .line[d^=M]")) == 7


def test_each_rank_is_shown_with_the_cause_of_its_end(page: Page, engine: ToldEngine) -> None:
    down = RankStatistics(rank=0, state=RankState.DOWN, num_restarts=2, cause="killed by SIGKILL")
    engine.ranks = (RankHealth.of(down), RankHealth.of(rank(1)))
    page.open("#engine")
    page.wait(lambda: page.all("#ranks tr"))
    rows = [[cell.text for cell in row.find_elements("css selector", "td")] for row in page.all("#ranks tr")]
    assert rows == [
        ["0", "down", "0", "0", "0.0 %", "2", "idle", "killed by SIGKILL"],
        ["1", "ready", "3", "2", "26.0 %", "0", "idle", ""],
    ]


def test_the_state_of_the_engine_and_its_cause_are_always_in_sight(page: Page, engine: ToldEngine) -> None:
    page.open("#engine")
    assert page.text("engine-state") == "ready"
    engine.is_paused = True
    page.wait(lambda: page.text("engine-detail") == "paused")
    engine.is_paused, engine.state = False, EngineState.STARTING
    page.wait(lambda: page.text("engine-detail") == "loading weights, 2 s")
    assert page.text("engine-state") == "starting"
    engine.state = EngineState.READY
    page.wait(lambda: page.text("engine-state") == "ready")


def test_an_answer_that_cannot_be_read_is_told_and_the_next_one_is_read(page: Page) -> None:
    page.open("#engine")
    page.run(
        "const ask = fetch; window.fetch = async (url, ...others) => {"
        " if (!String(url).endsWith('health')) return ask(url, ...others);"
        " window.fetch = ask; return new Response('<p>A proxy has this to say.'); }"
    )
    page.wait(lambda: page.text("engine-state") == "in trouble")
    assert page.text("engine-detail") == "What the server answers cannot be read."
    page.wait(lambda: page.text("engine-state") == "ready")


def test_metrics_are_read_as_by_prometheus(modules: Page) -> None:
    """Labels with quotes, line ends and backslashes; and quantiles of whatever was observed."""
    cases = []

    @settings(max_examples=60)
    @given(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8),
        st.lists(st.floats(0.0005, 400), min_size=1, max_size=30),
        st.sampled_from([0.01, *QUANTILES, 1.0]),
    )
    def collect(model: str, seconds: list[float], share: float) -> None:
        told = statistics(rank(0), seconds=tuple(seconds))
        text = render_metrics(told, model_name=model).decode()
        cases.append((text, share, model, quantile(told.time_to_first_token, share)))

    collect()
    found = modules.call(
        "history.js prometheus.js",
        "given[0].map(([text, share]) => {"
        " const samples = parseMetrics(text);"
        " const { firstToken } = readingOf(samples, 0).histograms;"
        " const { labels } = samples.get('triolet_generation_tokens_total')[0];"
        " return [labels.model_name, quantileBetween([], firstToken, share)]; })",
        cases,
    )
    for (_, _, model, value), (name, told) in zip(cases, found, strict=True):
        assert name == model
        assert told == pytest.approx(value)


def test_what_happened_before_the_last_minute_is_left_out(modules: Page) -> None:
    rates = modules.call(
        "history.js",
        "(() => { const history = new History(300); const told = [];"
        " for (let time = 0; time <= 400; time += 1) {"
        "  const tokens = time < 340 ? 10 * time : 3400;"
        "  history.add({ time, counters: { outputTokens: tokens, drafts: 1 }, histograms: {} });"
        "  if (time % 100 === 0 || time === 345) told.push([time, history.rate('outputTokens', 60)]); }"
        " return [told, history.readings.length]; })()",
    )
    assert rates == [
        [[0, None], [100, 10], [200, 10], [300, 10], [345, pytest.approx(550 / 60)], [400, 0]],
        302 - 1,
    ]


def test_another_server_begins_a_new_history(modules: Page) -> None:
    readings = [5, 9, 2, 3]
    growth = modules.call(
        "history.js",
        "(() => { const history = new History(300);"
        " return given[0].map((outputTokens, time) => {"
        "  history.add({ time, counters: { outputTokens }, histograms: {} });"
        "  return history.growth('outputTokens', 60); }); })()",
        readings,
    )
    assert growth == [0, 4, 0, 1]
