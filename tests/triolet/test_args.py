from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet import LLM, Engine, LLMEngine
from triolet.args import DEFAULT_MODEL, EngineArgs, ServeArgs, engine_args
from triolet.errors import UsageError
from triolet.option_fields import choices_of, flag_of

NOT_POSITIVE: list[Any] = [0, -1, 1.0, 0.5, "8", True, math.nan, math.inf, [8]]
NOT_A_STRING: list[Any] = ["", 5, True, b"x", Path("x"), ["x"]]
NOT_SECONDS: list[Any] = [None, "1", True, -1, -0.1, math.nan, math.inf, [1.0]]

BAD: dict[str, list[Any]] = {
    "model": [*NOT_A_STRING, None],
    "served_model_name": [None, 5, "", [""], ("x", 5), {"x": 1}, [None]],
    "revision": NOT_A_STRING,
    "tool_call_parser": NOT_A_STRING,
    "reasoning_parser": NOT_A_STRING,
    "cache_dir": [5, True, b"x", ["x"]],
    "max_model_len": [*NOT_POSITIVE, "", "longest"],
    "chat_template": [5, True, b"x", ["x"]],
    "dtype": [None, "", "float16", 32, ["auto"]],
    "device": [None, "", "tpu", 0, {}],
    "kernels": [None, "fast", True],
    "num_threads": [*NOT_POSITIVE, 1025, 100_000],
    "block_size": [*NOT_POSITIVE, None, 4, 12, 33],
    "kv_cache_bytes": NOT_POSITIVE,
    "kv_cache_dtype": ["int4", 8],
    "gpu_memory_utilization": [0.0, -0.1, 1.01, float("nan"), "half"],
    "num_kv_blocks": NOT_POSITIVE,
    "max_num_seqs": [*NOT_POSITIVE, None],
    "max_num_batched_tokens": [*NOT_POSITIVE, None, 63, 2**17 + 1, 10**12],
    "max_num_queued_requests": [*NOT_POSITIVE, None],
    "max_num_queued_tokens": [*NOT_POSITIVE, None],
    "max_unread_bytes": [*NOT_POSITIVE, None],
    "seed": ["7", True, 7.0, math.nan, [7]],
    "enable_prefix_caching": [None, 0, 1, "yes", []],
    "long_prefill_token_threshold": [None, -1, 1.0, "8", True, math.nan],
    "scheduling_policy": [None, "", "lifo", 1],
    "logprobs_mode": [None, "", "cooked"],
    "speculation": [None, "", "on", True],
    "num_speculative_tokens": [*NOT_POSITIVE, None, 65, 10**12],
    "draft_model": NOT_A_STRING,
    "log_stats_interval": NOT_SECONDS,
    "separate_engine": [None, 0, "yes"],
    "data_parallel_size": [*NOT_POSITIVE, None, 1025],
    "data_parallel_size_local": [-1, 2, 1.0, "1", True],
    "data_parallel_start_rank": [-1, 1, 0.0, "0", True],
    "data_parallel_rank": [0.0, "0", True, [0]],
    "data_parallel_external_lb": [None, 0, "yes"],
    "data_parallel_hybrid_lb": [None, 0, "yes"],
    "data_parallel_address": NOT_A_STRING,
    "data_parallel_rpc_port": [None, 0, -1, 65536, "5", True],
    "tensor_parallel_size": [*NOT_POSITIVE, None, 1025],
    "nnodes": [*NOT_POSITIVE, None, 1025],
    "node_rank": [-1, 1, None, 0.0, "0", True],
    "master_addr": [*NOT_A_STRING, None],
    "master_port": [None, 0, -1, 65536, "5", True],
    "cluster_secret_file": [5, True, b"x", ["x"]],
    "cluster_join_timeout": [*NOT_SECONDS, 0],
    "liveness_timeout": [*NOT_SECONDS, 0],
    "engine_stall_timeout": [*NOT_SECONDS, 0],
    "engine_load_timeout": [*NOT_SECONDS, 0],
    "engine_restart_budget": [None, -1, 1.0, "8", True, math.nan],
}
BAD_FOR_SERVER: dict[str, list[Any]] = {
    "page": ["yes", 1],
    "headless": [None, 0, "yes"],
    "api_server_count": [0, -1, 65, 1.0, "2", True],
    "host": [*NOT_A_STRING, None],
    "port": [None, "x", "8000", True, 80.0, -1, 65536, math.nan],
    "backend": [None, "curio", 1],
    "api_key": NOT_A_STRING,
    "uds": [5, True, b"x", ["x"]],
    "ssl_certfile": [5, True, b"x", ["x"]],
    "ssl_keyfile": [5, True, "key.pem"],
    "ssl_ca_certs": [5, True, "authorities.pem"],
    "api_key_file": [5, True, b"x", ["x"]],
    "admin_api_key": NOT_A_STRING,
    "max_body_bytes": [*NOT_POSITIVE, None],
    "max_num_messages": [*NOT_POSITIVE, None],
    "response_store_size": [-1, 1.0, "2", True, None],
    "response_store_bytes": [-1, 1.0, "2", True, None],
    "ping_interval": [*NOT_SECONDS, 0, 0.0],
    "drain_lead_time": NOT_SECONDS,
    "shutdown_timeout": NOT_SECONDS,
    "cors_origin": [None, 5, "", [""], ("x", 5)],
    "access_log": [None, "", "xml", True],
    "otlp_traces_endpoint": [*NOT_A_STRING, "localhost:4318", "ftp://x", "http://"],
    "log_level": [None, "loud", 10],
}


def cases(table: dict[str, list[Any]]) -> list[Any]:
    return [
        pytest.param(name, value, id=f"{name}-{value!r}")
        for name, values in table.items()
        for value in values
    ]


def check_refused(cls: type[EngineArgs], name: str, value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        cls(**{name: value})
    assert caught.value.param == name
    assert flag_of(name) in caught.value.message


@pytest.mark.parametrize("cls", [EngineArgs, ServeArgs])
@pytest.mark.parametrize(("name", "value"), cases(BAD))
def test_wrong_values_are_refused_naming_field_and_flag(cls: type[EngineArgs], name: str, value: Any) -> None:
    check_refused(cls, name, value)


@pytest.mark.parametrize(("name", "value"), cases(BAD_FOR_SERVER))
def test_so_are_those_of_the_server(name: str, value: Any) -> None:
    check_refused(ServeArgs, name, value)


def test_every_option_is_checked_and_described() -> None:
    fields = dataclasses.fields(ServeArgs)
    assert {field.name for field in fields} == BAD.keys() | BAD_FOR_SERVER.keys()
    for field in fields:
        assert field.metadata["help"].endswith("."), field.name
        assert field.metadata["group"], field.name


@given(
    st.dictionaries(
        st.sampled_from(sorted(BAD.keys() | BAD_FOR_SERVER.keys())),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text()
        | st.lists(st.integers(), max_size=2),
        max_size=4,
    )
)
def test_whatever_comes_the_error_is_a_usage_error(options: dict[str, Any]) -> None:
    with suppress(UsageError):
        ServeArgs(**options)


def test_defaults() -> None:
    args = EngineArgs()
    assert args.model == DEFAULT_MODEL
    assert (args.max_model_len, args.num_threads, args.kv_cache_bytes, args.seed) == (None,) * 4
    assert ServeArgs().host == "127.0.0.1", "nobody else may come in unless asked"


@pytest.mark.parametrize("options", [{"speculation": "draft"}, {"draft_model": "tiny"}])
def test_a_draft_model_and_its_use_go_together(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="go together"):
        EngineArgs(**options)
    EngineArgs(speculation="draft", draft_model="tiny")


def test_tls_is_for_addresses_alone() -> None:
    args = ServeArgs(ssl_certfile="~/c.pem", ssl_keyfile="k.pem")  # type: ignore[arg-type]
    assert (args.ssl_certfile, args.ssl_keyfile) == (Path("~/c.pem").expanduser(), Path("k.pem"))
    with pytest.raises(UsageError, match="--ssl-certfile"):
        ServeArgs(ssl_certfile=Path("c.pem"), uds=Path("s"))


def test_paths_and_names_may_be_plain_strings() -> None:
    args = EngineArgs(cache_dir="a/b", chat_template="t.jinja", served_model_name="x")  # type: ignore[arg-type]
    assert (args.cache_dir, args.chat_template) == (Path("a/b"), Path("t.jinja"))
    assert args.served_model_name == ("x",)
    assert EngineArgs(served_model_name=["x", "y"]).served_model_name == ("x", "y")  # type: ignore[arg-type]


def test_numbers_of_seconds_may_be_whole() -> None:
    assert ServeArgs(ping_interval=5, drain_lead_time=0, shutdown_timeout=60).ping_interval == 5


@pytest.mark.parametrize("block_size", [8, 16, 32, 64])
def test_block_sizes(block_size: int) -> None:
    assert EngineArgs(block_size=block_size).block_size == block_size


def test_a_step_must_have_a_token_for_every_sequence() -> None:
    EngineArgs(max_num_seqs=8, max_num_batched_tokens=8)
    with pytest.raises(UsageError, match=r"--max-num-batched-tokens \(7\) is below --max-num-seqs \(8\)"):
        EngineArgs(max_num_seqs=8, max_num_batched_tokens=7)


def test_an_unknown_option_is_a_type_error_as_for_any_call() -> None:
    with pytest.raises(TypeError, match="max_seqs"):
        EngineArgs(max_seqs=1)  # type: ignore[call-arg]


def test_args_are_immutable_and_replace_checks_again() -> None:
    args = ServeArgs(port=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        args.port = 1  # type: ignore[misc]
    with pytest.raises(UsageError, match="port"):
        dataclasses.replace(args, port=-1)


def test_choices() -> None:
    assert choices_of(EngineArgs)["device"] == ("auto", "cpu", "cuda")
    assert choices_of(ServeArgs).keys() - choices_of(EngineArgs).keys() == {
        "access_log",
        "backend",
        "log_level",
    }


def test_flags() -> None:
    assert flag_of("max_num_seqs") == "--max-num-seqs"


def test_secrets_are_shown_nowhere() -> None:
    args = ServeArgs(api_key="s3cret", admin_api_key="root:s3cret")
    assert "s3cret" not in repr(args)
    for name in ("api_key", "admin_api_key"):
        with pytest.raises(UsageError, match=f"{name} .* must be") as caught:
            ServeArgs(**{name: ["s3cret"]})  # type: ignore[arg-type]
        assert "s3cret" not in caught.value.message


def test_options_are_given_one_by_one_or_together() -> None:
    args = EngineArgs(seed=1)
    assert engine_args(args, {}) is args
    assert engine_args(None, {"seed": 1}) == args
    with pytest.raises(TypeError, match="not both"):
        engine_args(args, {"seed": 1})


@pytest.mark.parametrize("make", [Engine, LLM, LLMEngine])
@pytest.mark.parametrize(
    ("name", "hint"), [("max_modl_len", r"did you mean max_model_len\?"), ("zzz", "remove it")]
)
def test_an_option_that_nobody_knows_is_refused(make: Callable[..., Any], name: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"{name}: there is no such option here; {hint}") as caught:
        make(**{name: 1})
    assert caught.value.param == name
