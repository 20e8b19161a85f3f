"""A snapshot of an engine's statistics in the text format of Prometheus, made anew at each scrape.

Gauges come from live state and so cannot freeze. Knows neither the engine nor HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from triolet.request import FinishReason
from triolet.statistics import EngineState, EngineStatistics, Histogram

__all__ = ["CONTENT_TYPE", "EngineCollector", "render_metrics"]

CONTENT_TYPE = CONTENT_TYPE_LATEST
LABELS = ("model_name",)
ANSWERED = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT, FinishReason.TIMEOUT)


class EngineCollector(Collector):
    """Turns one snapshot into metric families, all of them named ``triolet_…``."""

    def __init__(self, statistics: EngineStatistics, *, model_name: str) -> None:
        self._statistics = statistics
        self._labels = (model_name,)

    def collect(self) -> Iterator[Metric]:
        yield from self._gauges()
        yield self._state()
        yield from self._counters()
        yield self._outcomes()
        yield self._successes()
        yield from self._histograms()

    def _gauges(self) -> Iterator[Metric]:
        scheduler = self._statistics.scheduler
        for name, text, value in (
            (
                "engine_paused",
                "1 while requests wait to be resumed.",
                self._statistics.is_paused,
            ),
            ("engine_sleeping", "1 while any part of the engine sleeps.", self._statistics.is_sleeping),
            ("num_requests_running", "Requests being computed.", scheduler.num_running),
            ("num_requests_waiting", "Requests waiting for their first step.", scheduler.num_waiting),
            ("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", scheduler.kv_usage),
            ("kv_cache_blocks", "KV blocks in all.", scheduler.num_blocks),
        ):
            family = GaugeMetricFamily(f"triolet_{name}", text, labels=LABELS)
            family.add_metric(self._labels, float(value))
            yield family

    def _state(self) -> Metric:
        family = GaugeMetricFamily(
            "triolet_engine_state", "1 for the state the engine is in.", labels=(*LABELS, "state")
        )
        for state in EngineState:
            family.add_metric((*self._labels, state.value), float(state is self._statistics.state))
        return family

    def _counters(self) -> Iterator[Metric]:
        statistics, scheduler = self._statistics, self._statistics.scheduler
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens of the requests taken.", statistics.num_prompt_tokens),
            ("generation_tokens", "Tokens generated.", statistics.num_generated_tokens),
            ("prompt_tokens_computed", "Prompt tokens computed.", statistics.core.num_computed_prompt_tokens),
            ("prefix_cache_queries", "Prompt tokens looked up.", scheduler.num_prefix_queries),
            ("prefix_cache_hits", "Prompt tokens found in the cache.", scheduler.num_prefix_hits),
            ("num_preemptions", "Times a request lost its KV blocks.", scheduler.num_preemptions),
            ("spec_decode_num_draft_tokens", "Guesses at next tokens.", scheduler.num_draft_tokens),
            ("spec_decode_num_accepted_tokens", "Those that were right.", scheduler.num_accepted_tokens),
            ("steps", "Steps of the engine.", statistics.num_steps),
        ):
            family = CounterMetricFamily(f"triolet_{name}", text, labels=LABELS)
            family.add_metric(self._labels, value)
            yield family

    def _outcomes(self) -> Metric:
        family = CounterMetricFamily(
            "triolet_request_outcome", "Requests that ended, by how.", labels=(*LABELS, "finished_reason")
        )
        for outcome, count in sorted(self._statistics.outcomes.items()):
            family.add_metric((*self._labels, outcome), count)
        return family

    def _successes(self) -> Metric:
        family = CounterMetricFamily(
            "triolet_request_success", "Requests that were answered.", labels=(*LABELS, "finished_reason")
        )
        for reason in ANSWERED:
            family.add_metric((*self._labels, reason.value), self._statistics.outcomes.get(reason.value, 0))
        return family

    def _histograms(self) -> Iterator[Metric]:
        statistics, core = self._statistics, self._statistics.core
        for name, text, histogram in (
            ("time_to_first_token", "From arrival to the first token.", statistics.time_to_first_token),
            ("inter_token_latency", "Between two tokens of a request.", statistics.inter_token_latency),
            ("request_time_per_output_token", "Mean over a request's tokens.", core.time_per_output_token),
            ("e2e_request_latency", "From arrival to the end.", statistics.request_latency),
            ("request_queue_time", "From arrival to the first step.", core.queue_time),
            ("request_prefill_time", "From the first step to the first token.", core.prefill_time),
            ("request_decode_time", "From the first token to the last.", core.decode_time),
            ("request_inference_time", "From the first step to the last token.", core.inference_time),
            ("cancel_latency", "From a caller leaving to its slot being free.", statistics.cancel_latency),
            ("step_duration", "One step of the engine.", statistics.step_duration),
        ):
            yield self._histogram(f"{name}_seconds", f"Seconds. {text}", histogram)
        for name, text, histogram in (
            ("request_prompt_tokens", "Prompt tokens of a request.", core.prompt_tokens),
            ("request_generation_tokens", "Tokens generated for a request.", core.generation_tokens),
            ("request_params_n", "Continuations asked for.", statistics.params_n),
            ("request_params_max_tokens", "Most tokens asked for.", statistics.params_max_tokens),
            ("iteration_tokens_total", "Tokens computed in a step.", core.iteration_tokens),
        ):
            yield self._histogram(name, text, histogram)

    def _histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(f"triolet_{name}", text, labels=LABELS)
        family.add_metric(self._labels, _buckets(histogram), histogram.total)
        return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    ends = [*(str(bound) for bound in histogram.bounds), "+Inf"]
    return list(zip(ends, map(float, accumulate(histogram.counts)), strict=True))


def render_metrics(statistics: EngineStatistics, *, model_name: str) -> bytes:
    """The whole page: the engine's metrics, and those of the process (memory, CPU time, open files)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(EngineCollector(statistics, model_name=model_name))
    ProcessCollector(registry=registry)
    return generate_latest(registry)
