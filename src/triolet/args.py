"""``EngineArgs``: every option of the engine, declared once; ``ServeArgs`` adds those of the HTTP server.

The library takes them as keyword arguments, the command line is generated from the same fields. They are
checked when made; a wrong value raises :class:`UsageError` naming the field and the flag.

This module knows neither torch nor the web framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from triolet.errors import UsageError
from triolet.launch_shape import LaunchShape, derive_shape
from triolet.option_fields import (
    check_at_least,
    check_names,
    check_not_negative,
    check_types,
    option,
    usage_error,
)
from triolet.parallel_args import ParallelArgs

__all__ = ["DEFAULT_MODEL", "AccessLogFormat", "EngineArgs", "ServeArgs", "engine_args"]

DEFAULT_MODEL = "smollm2-135m-instruct"
LARGEST = {"num_threads": 1024, "max_num_batched_tokens": 2**17, "num_speculative_tokens": 64}
"""Far more threads end the process inside OpenMP, without a word that could be caught; more tokens in a step
or more guesses take memory for nothing."""

MAX_NUM_API_SERVERS = 64
TLS_FILES = ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs")

Dtype = Literal["auto", "float32", "bfloat16"]
KVCacheDtype = Literal["auto", "int8", "fp8"]
Device = Literal["auto", "cpu", "cuda"]
Kernels = Literal["auto", "reference"]
Backend = Literal["asyncio", "trio"]
AccessLogFormat = Literal["off", "text", "json"]
SchedulingPolicy = Literal["fcfs", "priority"]
LogprobsMode = Literal["raw", "processed"]
Speculation = Literal["off", "ngram", "suffix", "draft"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArgs(ParallelArgs):
    """Options of the engine."""

    model: str = option(
        DEFAULT_MODEL,
        "Built-in short name, path of a GGUF file or of a Hugging Face directory, or id on the hub.",
        group="model",
    )
    served_model_name: tuple[str, ...] = option(
        (), "Names that requests may use for the model; the model's own name if none.", group="model"
    )
    revision: str | None = option(
        None, "Branch, tag or commit of a hub id.", group="model", metavar="REVISION"
    )
    cache_dir: Path | None = option(
        None, "Folder for fetched models; ~/.cache/triolet if not given.", group="model", metavar="DIR"
    )
    max_model_len: int | Literal["auto"] | None = option(
        None, "Longest prompt plus output in tokens, or auto for the longest that fits in the memory; the "
        "model's own limit if not given.",
        group="model", metavar="N|auto",
    )  # fmt: skip
    chat_template: Path | None = option(
        None, "Jinja file to use instead of the model's own chat template.", group="model", metavar="FILE"
    )
    tool_call_parser: str | None = option(
        None, "Format in which the model calls tools, by name or as module:NAME; found in the chat template "
        "if not given.",
        group="model", metavar="NAME",
    )  # fmt: skip
    reasoning_parser: str | None = option(
        None, "Format in which the model writes its reasoning, likewise.", group="model", metavar="NAME"
    )
    dtype: Dtype = option(
        "auto", "Number format of activations and KV cache; auto picks what the device is fast at.",
        group="device",
    )  # fmt: skip
    device: Device = option("auto", "Where the model runs; auto takes a GPU if any.", group="device")
    kernels: Kernels = option(
        "auto", "auto picks the fastest kernels there are; reference is plain float32 torch.", group="device"
    )
    num_threads: int | None = option(
        None, "Threads of a CPU step; all cores available if not given.", group="device"
    )
    block_size: int = option(32, "Tokens in a KV block.", group="cache")
    kv_cache_bytes: int | None = option(
        None, "Bytes for the KV cache; a share of the free memory if not given.", group="cache"
    )
    num_kv_blocks: int | None = option(
        None, "Number of KV blocks; overrides --kv-cache-bytes.", group="cache"
    )
    kv_cache_dtype: KVCacheDtype = option(
        "auto", "Number format of the KV cache: that of activations, or 8 bits, which take half the memory, "
        "for some of the accuracy: int8 on a CPU, fp8 on a GPU.",
        group="cache",
    )  # fmt: skip
    gpu_memory_utilization: float = option(
        0.9, "Share of a GPU's memory that weights, steps and KV cache may take together; up to 1.",
        group="cache", metavar="SHARE",
    )  # fmt: skip
    enable_prefix_caching: bool = option(
        True, "Compute a prefix that prompts have in common once, and keep it while there is room.",
        group="cache",
    )  # fmt: skip
    max_num_seqs: int = option(64, "Most sequences in one step.", group="scheduling")
    max_num_batched_tokens: int = option(512, "Most tokens in one step.", group="scheduling")
    long_prefill_token_threshold: int = option(
        0, "Most tokens of one prompt in a step in which others generate; 0: learnt from how long steps "
        "take, so that a long prompt makes none take more than about two and a half times as long.",
        group="scheduling",
    )  # fmt: skip
    scheduling_policy: SchedulingPolicy = option(
        "fcfs", "fcfs: first come, first served; priority: by the request's priority, lower first.",
        group="scheduling",
    )  # fmt: skip
    max_num_queued_requests: int = option(
        1024, "Most requests that wait for a slot; further ones are refused with 429.", group="scheduling"
    )
    max_num_queued_tokens: int = option(
        2**20, "Most tokens in the prompts that wait; what would exceed it is refused with 429, unless "
        "nothing else waits.",
        group="scheduling",
    )  # fmt: skip
    max_unread_bytes: int = option(
        8 * 2**20, "How far the reader of a stream may be behind what is generated, in bytes; the request of "
        "one who falls further behind ends with an error.",
        group="scheduling",
    )  # fmt: skip
    seed: int | None = option(
        None, "Seed from which the seeds of requests that name none are derived; random if not given.",
        group="scheduling",
    )  # fmt: skip
    logprobs_mode: LogprobsMode = option(
        "raw", "Report the model's own log-probabilities (raw), or those of the distribution sampled from "
        "(processed).",
        group="sampling",
    )  # fmt: skip
    speculation: Speculation = option(
        "off", "Where guesses at the next tokens come from: ngram or suffix look them up in the text so "
        "far, draft asks a smaller model.",
        group="speculation",
    )  # fmt: skip
    num_speculative_tokens: int = option(8, "Most guesses for a sequence in one step.", group="speculation")
    draft_model: str | None = option(
        None, "The smaller model of --speculation draft, named as the model is.", group="speculation"
    )
    log_stats_interval: float = option(
        10.0, "Seconds between two lines of statistics in the log while there is work; 0: none.",
        group="logging",
    )  # fmt: skip

    def __post_init__(self) -> None:
        for name in ("served_model_name", "cors_origin"):
            names = getattr(self, name, ())
            if isinstance(names, str | list):
                object.__setattr__(self, name, (names,) if isinstance(names, str) else tuple(names))
        for name in ("cache_dir", "chat_template", "api_key_file", "uds", "cluster_secret_file", *TLS_FILES):
            value = getattr(self, name, None)
            if isinstance(value, str | Path):
                object.__setattr__(self, name, Path(value).expanduser())
        self._check()

    def _check(self) -> None:
        check_types(self)
        check_at_least(self, 1, (
            "max_model_len", "num_threads", "block_size", "kv_cache_bytes", "num_kv_blocks",
            "max_num_seqs", "max_num_batched_tokens", "max_num_queued_requests", "max_num_queued_tokens",
            "num_speculative_tokens", "max_unread_bytes",
        ))  # fmt: skip
        check_not_negative(self, ("long_prefill_token_threshold", "log_stats_interval"))
        if not 0 < self.gpu_memory_utilization <= 1:
            raise usage_error(self, "gpu_memory_utilization", "must be above 0 and at most 1")
        if (self.speculation == "draft") != (self.draft_model is not None):
            raise UsageError(
                "--speculation draft and --draft-model go together; give both or neither",
                param="draft_model" if self.draft_model is None else "speculation",
            )
        for name, largest in LARGEST.items():
            if (getattr(self, name) or 0) > largest:
                raise usage_error(self, name, f"must be {largest} or less")
        if self.block_size & (self.block_size - 1) or self.block_size < 8:
            raise usage_error(self, "block_size", "must be a power of two, 8 or more")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise UsageError(
                f"--max-num-batched-tokens ({self.max_num_batched_tokens}) is below --max-num-seqs "
                f"({self.max_num_seqs}): every running sequence needs one token of each step; "
                "raise the first or lower the second",
                param="max_num_batched_tokens",
            )
        self._check_parallel()
        shape = self.launch_shape()
        is_measured = self.max_model_len == "auto" and not (self.kv_cache_bytes or self.num_kv_blocks)
        if is_measured and not shape.is_one_process:
            raise usage_error(
                self, "max_model_len", "needs --kv-cache-bytes where engines have processes of their own: "
                "each would find another length in the memory that is free when it starts",
            )  # fmt: skip

    def launch_shape(self) -> LaunchShape:
        """The processes that these options ask for."""
        return derive_shape(self)


def engine_args(args: EngineArgs | None, options: Mapping[str, Any]) -> EngineArgs:
    """``args`` themselves, or what is made of keyword ``options``.

    Raises TypeError where both are given, UsageError for an option that there is not, naming the nearest.
    """
    if args is None:
        check_names(EngineArgs, options)
        return EngineArgs(**options)
    if options:
        raise TypeError("give either an EngineArgs or keyword options, not both")
    return args


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeArgs(EngineArgs):
    """Options of ``python -m server``: the engine's, and those of the HTTP server."""

    headless: bool = option(
        False, "Run engines without HTTP, for the head at --data-parallel-address.", group="http"
    )
    api_server_count: int | None = option(
        None, "HTTP processes that share the port; 1 if not given.", group="http", metavar="N"
    )
    host: str = option("127.0.0.1", "Address to listen on.", group="http")
    port: int = option(8000, "Port to listen on; 0 picks a free one.", group="http")
    uds: Path | None = option(
        None, "Unix socket to listen on instead of an address and a port.", group="http", metavar="PATH"
    )
    ssl_certfile: Path | None = option(
        None, "PEM file with the certificate and those between it and its authority, to serve HTTPS with; "
        "read again when it changes.",
        group="http", metavar="FILE",
    )  # fmt: skip
    ssl_keyfile: Path | None = option(
        None, "PEM file with the certificate's key; in the certificate's own file if not given.",
        group="http", metavar="FILE",
    )  # fmt: skip
    ssl_ca_certs: Path | None = option(
        None, "PEM file with the authorities of which each client must show a certificate.",
        group="http", metavar="FILE",
    )  # fmt: skip
    backend: Backend = option("asyncio", "Event loop; asyncio uses uvloop where installed.", group="http")
    api_key: str | None = option(
        None, "Key that requests must carry, or several with names: 'alice:key1 bob:key2'; TRIOLET_API_KEY "
        "in the environment if not given.",
        group="http", is_secret=True,
    )  # fmt: skip
    api_key_file: Path | None = option(
        None, "File with further keys, their names and limits; read again whenever it changes.", group="http",
        metavar="FILE",
    )  # fmt: skip
    admin_api_key: str | None = option(
        None, "Key to the routes that control the engine, which are shut without one; "
        "TRIOLET_ADMIN_API_KEY in the environment if not given.",
        group="http", is_secret=True,
    )  # fmt: skip
    max_body_bytes: int = option(4 * 2**20, "Largest request body in bytes; more is a 413.", group="http")
    max_num_messages: int = option(4096, "Most messages in one chat request; more is a 400.", group="http")
    response_store_size: int = option(
        1000, "Most responses kept for previous_response_id and retrieval, in each API server; the least "
        "recently used are dropped, and 0 keeps none.",
        group="http", metavar="N",
    )  # fmt: skip
    response_store_bytes: int = option(
        64 * 2**20, "Most bytes that these responses and their conversations may take.", group="http",
        metavar="BYTES",
    )  # fmt: skip
    ping_interval: float = option(
        15.0, "Seconds between comments on a stream that produces nothing.", group="http"
    )
    drain_lead_time: float = option(
        0.0, "Seconds between turning unready and refusing new work on SIGTERM.", group="http"
    )
    shutdown_timeout: float = option(
        30.0, "Seconds that requests under way may take to finish on SIGTERM.", group="http"
    )
    page: bool = option(
        True, "Serve a page to chat with the model and to watch the engine, at /; its files need no key.",
        group="http",
    )  # fmt: skip
    cors_origin: tuple[str, ...] = option(
        (), "Origins whose pages may use the server in a browser, such as https://example.org; * is any.",
        group="http",
    )  # fmt: skip
    access_log: AccessLogFormat = option(
        "off", "A line for each request, without its content: method, path, status, seconds, id, name of the "
        "key, tokens.",
        group="http",
    )  # fmt: skip
    otlp_traces_endpoint: str | None = option(
        None, "Where OpenTelemetry traces go, by OTLP over HTTP, such as http://localhost:4318; "
        "OTEL_EXPORTER_OTLP_ENDPOINT in the environment if not given. Needs triolet[otel].",
        group="http", metavar="URL",
    )  # fmt: skip
    log_level: Literal["debug", "info", "warning", "error"] = option(
        "info", "Least severe messages that are logged.", group="http"
    )

    def _check(self) -> None:
        # Named, because a slotted dataclass is rebuilt and the zero-argument super() would miss it.
        EngineArgs._check(self)
        check_at_least(self, 1, ("max_body_bytes", "max_num_messages"))
        check_at_least(self, 0, ("api_server_count", "response_store_size", "response_store_bytes"))
        if self.api_server_count is not None and self.api_server_count > MAX_NUM_API_SERVERS:
            raise usage_error(self, "api_server_count", f"must be {MAX_NUM_API_SERVERS} or less")
        if not 0 <= self.port <= 65535:
            raise usage_error(self, "port", "must be in [0, 65535]")
        self._check_tls()
        for name in ("ping_interval", "drain_lead_time", "shutdown_timeout"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise usage_error(self, name, "must be a number of seconds, 0 or more")
        if self.ping_interval == 0:
            raise usage_error(self, "ping_interval", "must be more than 0")

        url = urlsplit(self.otlp_traces_endpoint or "http://none")
        if url.scheme not in ("http", "https") or not url.netloc:
            raise usage_error(self, "otlp_traces_endpoint", "must be a URL such as http://localhost:4318")

    def _check_tls(self) -> None:
        for name in TLS_FILES:
            if getattr(self, name) is None:
                continue
            if self.ssl_certfile is None:
                raise usage_error(self, name, "needs --ssl-certfile beside it")
            if self.uds is not None:
                raise usage_error(
                    self, name, "is for an address: what comes by --uds never leaves the machine"
                )

    def launch_shape(self) -> LaunchShape:
        """The processes that these options ask for."""
        return derive_shape(self, num_api_servers=self.api_server_count, is_headless=self.headless)
