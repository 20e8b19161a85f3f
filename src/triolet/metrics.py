"""A snapshot of an engine's statistics in the text format of Prometheus, made anew at each scrape.

Gauges come from live state and so cannot freeze. Knows neither the engine nor HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from operator import attrgetter

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from triolet.request import FinishReason
from triolet.statistics import EngineState, EngineStatistics, Histogram, RankState, RankStatistics

__all__ = ["CONTENT_TYPE", "EngineCollector", "render_metrics"]

CONTENT_TYPE = CONTENT_TYPE_LATEST
FRONT_LABELS = ("model_name",)
REASON_LABELS = (*FRONT_LABELS, "finished_reason")
RANK_LABELS = ("model_name", "engine")
ANSWERED = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT, FinishReason.TIMEOUT)

Family = GaugeMetricFamily | CounterMetricFamily
Number = Callable[[RankStatistics], float]

GAUGES: tuple[tuple[str, str, Number], ...] = (
    ("engine_up", "1 while the engine takes requests.", lambda rank: rank.state is RankState.READY),
    ("engine_paused", "1 while requests wait to be resumed.", lambda rank: rank.is_paused),
    ("engine_sleeping", "1 while any part of the engine sleeps.", lambda rank: rank.is_sleeping),
    ("num_requests_running", "Requests being computed.", attrgetter("scheduler.num_running")),
    ("num_requests_waiting", "Requests waiting for their first step.", attrgetter("scheduler.num_waiting")),
    ("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", attrgetter("scheduler.kv_usage")),
    ("kv_cache_blocks", "KV blocks in all.", attrgetter("scheduler.num_blocks")),
)

COUNTERS: tuple[tuple[str, str, Number], ...] = (
    ("prompt_tokens_computed", "Prompt tokens computed.", attrgetter("core.num_computed_prompt_tokens")),
    ("prefix_cache_queries", "Prompt tokens looked up.", attrgetter("scheduler.num_prefix_queries")),
    ("prefix_cache_hits", "Prompt tokens found in the cache.", attrgetter("scheduler.num_prefix_hits")),
    ("num_preemptions", "Times a request lost its KV blocks.", attrgetter("scheduler.num_preemptions")),
    ("spec_decode_num_draft_tokens", "Guesses at next tokens.", attrgetter("scheduler.num_draft_tokens")),
    (
        "spec_decode_num_accepted_tokens",
        "Those that were right.",
        attrgetter("scheduler.num_accepted_tokens"),
    ),
    ("steps", "Steps of the engine.", attrgetter("num_steps")),
    ("engine_restarts", "Times the engine was started again.", attrgetter("num_restarts")),
)

FRONT_HISTOGRAMS: tuple[tuple[str, str, Callable[[EngineStatistics], Histogram]], ...] = (
    ("time_to_first_token_seconds", "From arrival to the first token.", attrgetter("time_to_first_token")),
    ("inter_token_latency_seconds", "Between two tokens of a request.", attrgetter("inter_token_latency")),
    ("e2e_request_latency_seconds", "From arrival to the end.", attrgetter("request_latency")),
    ("request_params_n", "Continuations asked for.", attrgetter("params_n")),
    ("request_params_max_tokens", "Most tokens asked for.", attrgetter("params_max_tokens")),
)

RANK_HISTOGRAMS: tuple[tuple[str, str, Callable[[RankStatistics], Histogram]], ...] = (
    (
        "request_time_per_output_token_seconds",
        "Mean over a request's tokens.",
        attrgetter("core.time_per_output_token"),
    ),
    ("request_queue_time_seconds", "From arrival to the first step.", attrgetter("core.queue_time")),
    (
        "request_prefill_time_seconds",
        "From the first step to the first token.",
        attrgetter("core.prefill_time"),
    ),
    ("request_decode_time_seconds", "From the first token to the last.", attrgetter("core.decode_time")),
    (
        "request_inference_time_seconds",
        "From the first step to the last token.",
        attrgetter("core.inference_time"),
    ),
    ("cancel_latency_seconds", "From a caller leaving to its slot being free.", attrgetter("cancel_latency")),
    ("step_duration_seconds", "One step of the engine.", attrgetter("step_duration")),
    ("request_prompt_tokens", "Prompt tokens of a request.", attrgetter("core.prompt_tokens")),
    ("request_generation_tokens", "Tokens generated for a request.", attrgetter("core.generation_tokens")),
    ("iteration_tokens_total", "Tokens computed in a step.", attrgetter("core.iteration_tokens")),
)


class EngineCollector(Collector):
    """Turns one snapshot into metric families, all of them named ``triolet_…``.

    What engine cores count has a sample for each of them, told apart by the label ``engine``: its rank.
    """

    def __init__(self, statistics: EngineStatistics, *, model_name: str) -> None:
        self._statistics = statistics
        self._labels = (model_name,)

    def collect(self) -> Iterator[Metric]:
        for name, text, value in GAUGES:
            yield self._of_ranks(GaugeMetricFamily(f"triolet_{name}", text, labels=RANK_LABELS), value)
        yield self._state()
        yield from self._front_counters()
        for name, text, value in COUNTERS:
            yield self._of_ranks(CounterMetricFamily(f"triolet_{name}", text, labels=RANK_LABELS), value)
        yield self._outcomes()
        yield self._successes()
        yield from self._front_histograms()
        yield from self._rank_histograms()

    def _of_ranks(self, family: Family, value: Number) -> Metric:
        for rank in self._statistics.ranks:
            family.add_metric((*self._labels, str(rank.rank)), float(value(rank)))
        return family

    def _state(self) -> Metric:
        family = GaugeMetricFamily(
            "triolet_engine_state", "1 for the state the engine is in.", labels=(*FRONT_LABELS, "state")
        )
        for state in EngineState:
            family.add_metric((*self._labels, state.value), float(state is self._statistics.state))
        return family

    def _front_counters(self) -> Iterator[Metric]:
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens of the requests taken.", self._statistics.num_prompt_tokens),
            ("generation_tokens", "Tokens generated.", self._statistics.num_generated_tokens),
        ):
            family = CounterMetricFamily(f"triolet_{name}", text, labels=FRONT_LABELS)
            family.add_metric(self._labels, value)
            yield family

    def _outcomes(self) -> Metric:
        family = CounterMetricFamily(
            "triolet_request_outcome",
            "Requests that ended, by how.",
            labels=REASON_LABELS,
        )
        for outcome, count in sorted(self._statistics.outcomes.items()):
            family.add_metric((*self._labels, outcome), count)
        return family

    def _successes(self) -> Metric:
        family = CounterMetricFamily(
            "triolet_request_success",
            "Requests that were answered.",
            labels=REASON_LABELS,
        )
        for reason in ANSWERED:
            family.add_metric((*self._labels, reason.value), self._statistics.outcomes.get(reason.value, 0))
        return family

    def _front_histograms(self) -> Iterator[Metric]:
        for name, text, value in FRONT_HISTOGRAMS:
            family = HistogramMetricFamily(f"triolet_{name}", _with_unit(name, text), labels=FRONT_LABELS)
            histogram = value(self._statistics)
            family.add_metric(self._labels, _buckets(histogram), histogram.total)
            yield family

    def _rank_histograms(self) -> Iterator[Metric]:
        for name, text, value in RANK_HISTOGRAMS:
            family = HistogramMetricFamily(f"triolet_{name}", _with_unit(name, text), labels=RANK_LABELS)
            for rank in self._statistics.ranks:
                histogram = value(rank)
                family.add_metric((*self._labels, str(rank.rank)), _buckets(histogram), histogram.total)
            yield family


def _with_unit(name: str, text: str) -> str:
    return f"Seconds. {text}" if name.endswith("_seconds") else text


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    ends = [*(str(bound) for bound in histogram.bounds), "+Inf"]
    return list(zip(ends, map(float, accumulate(histogram.counts)), strict=True))


def render_metrics(statistics: EngineStatistics, *, model_name: str) -> bytes:
    """The whole page: the engine's metrics, and those of the process (memory, CPU time, open files).

    Not the latter where several processes answer in turns, since each would tell of itself alone.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(EngineCollector(statistics, model_name=model_name))
    if statistics.num_front_ends == 1:
        ProcessCollector(registry=registry)
    return generate_latest(registry)
