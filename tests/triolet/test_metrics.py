"""The metrics page: parsed back by Prometheus' own parser."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from triolet.metrics import render_metrics
from triolet.statistics import (
    CoreStatistics,
    EngineState,
    EngineStatistics,
    Histogram,
    RankState,
    RankStatistics,
    SchedulerStatistics,
)


def statistics() -> EngineStatistics:
    latency = Histogram(bounds=(0.1, 1.0))
    for value in (0.05, 0.5, 0.7, 5.0):
        latency.observe(value)
    return EngineStatistics(
        state=EngineState.READY,
        ranks=(
            RankStatistics(
                rank=0,
                scheduler=SchedulerStatistics(
                    num_running=3, num_waiting=2, num_blocks=10, num_free_blocks=4, num_preemptions=1
                ),
                num_steps=40,
            ),
        ),
        outcomes={"stop": 5, "abort": 2, "refused": 1},
        num_prompt_tokens=100,
        num_generated_tokens=50,
        time_to_first_token=latency,
        inter_token_latency=Histogram(),
        request_latency=Histogram(),
    )


def samples(snapshot: EngineStatistics) -> dict[tuple[str, str], float]:
    text = render_metrics(snapshot, model_name="m").decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            extra = ",".join(value for label, value in sample.labels.items() if label != "model_name")
            found[sample.name, extra] = sample.value
    return found


def test_gauges_and_counters_tell_the_snapshot() -> None:
    found = samples(statistics())
    assert found["triolet_num_requests_running", "0"] == 3
    assert found["triolet_num_requests_waiting", "0"] == 2
    assert found["triolet_kv_cache_usage_perc", "0"] == 0.6
    assert found["triolet_prompt_tokens_total", ""] == 100
    assert found["triolet_generation_tokens_total", ""] == 50
    assert found["triolet_num_preemptions_total", "0"] == 1
    assert found["triolet_steps_total", "0"] == 40


def test_each_engine_core_has_its_own_series() -> None:
    first, *_ = statistics().ranks
    down = replace(first, rank=3, state=RankState.DOWN, num_restarts=2, num_steps=7)
    down.step_duration.observe(0.1)
    found = samples(replace(statistics(), ranks=(first, down)))
    for name, expected in (
        ("engine_up", (1, 0)),
        ("engine_restarts_total", (0, 2)),
        ("steps_total", (40, 7)),
    ):
        assert tuple(found[f"triolet_{name}", rank] for rank in ("0", "3")) == expected
    assert found["triolet_step_duration_seconds_count", "3"] == 1
    assert found["triolet_request_success_total", "stop"] == 5, "what the front end counts is counted once"


def test_the_cores_numbers_are_there() -> None:
    core = CoreStatistics(num_computed_prompt_tokens=7)
    core.queue_time.observe(0.2)
    core.iteration_tokens.observe(33)
    scheduler = SchedulerStatistics(
        num_prefix_queries=10, num_prefix_hits=4, num_draft_tokens=6, num_accepted_tokens=5
    )
    rank = RankStatistics(rank=0, core=core, scheduler=scheduler, is_paused=True)
    found = samples(replace(statistics(), ranks=(rank,)))
    assert found["triolet_prompt_tokens_computed_total", "0"] == 7
    assert found["triolet_prefix_cache_queries_total", "0"] == 10
    assert found["triolet_prefix_cache_hits_total", "0"] == 4
    assert found["triolet_spec_decode_num_draft_tokens_total", "0"] == 6
    assert found["triolet_spec_decode_num_accepted_tokens_total", "0"] == 5
    assert found["triolet_request_queue_time_seconds_sum", "0"] == 0.2
    assert found["triolet_iteration_tokens_total_bucket", "0,32.0"] == 0
    assert found["triolet_iteration_tokens_total_bucket", "0,64.0"] == 1
    assert (found["triolet_engine_paused", "0"], found["triolet_engine_sleeping", "0"]) == (1, 0)
    for name in (
        "request_time_per_output_token_seconds", "request_prefill_time_seconds",
        "request_decode_time_seconds", "request_inference_time_seconds",
        "request_prompt_tokens", "request_generation_tokens", "cancel_latency_seconds",
    ):  # fmt: skip
        assert found[f"triolet_{name}_count", "0"] == 0


def test_answers_are_counted_by_their_end() -> None:
    found = samples(statistics())
    expected = {"stop": 5, "length": 0, "abort": 2, "timeout": 0}
    assert {end: found["triolet_request_success_total", end] for end in expected} == expected


def test_every_outcome_is_counted() -> None:
    found = samples(statistics())
    assert found["triolet_request_outcome_total", "stop"] == 5
    assert found["triolet_request_outcome_total", "abort"] == 2
    assert found["triolet_request_outcome_total", "refused"] == 1


def test_buckets_are_cumulative() -> None:
    found = samples(statistics())
    name = "triolet_time_to_first_token_seconds"
    assert [found[f"{name}_bucket", end] for end in ("0.1", "1.0", "+Inf")] == [1, 3, 4]
    assert found[f"{name}_count", ""] == 4
    assert found[f"{name}_sum", ""] == 6.25
    for other in (
        "inter_token_latency_seconds", "e2e_request_latency_seconds",
        "request_params_n", "request_params_max_tokens",
    ):  # fmt: skip
        assert found[f"triolet_{other}_count", ""] == 0


def test_exactly_one_state_is_on() -> None:
    found = samples(replace(statistics(), state=EngineState.DRAINING))
    states = {state: found["triolet_engine_state", state.value] for state in EngineState}
    assert states.pop(EngineState.DRAINING) == 1
    assert set(states.values()) == {0}


def test_the_process_is_there_too() -> None:
    assert samples(statistics())["process_resident_memory_bytes", ""] > 0
    shared = samples(replace(statistics(), num_front_ends=2))
    assert not any(name.startswith("process_") for name, _ in shared), "of which process would it be?"
