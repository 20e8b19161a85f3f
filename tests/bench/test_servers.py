from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest
from bench.compare import Settings, ratios, run_rounds
from bench.report import median_rows
from bench.servers import Server, llama_server, running, triolet_server


def canned(name: str) -> Server:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = f"from tests.openai_server import serve_forever; serve_forever({port})"
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    return Server(name, (sys.executable, "-c", code), port, "/ready", environment)


def test_a_server_runs_inside_the_block_only(tmp_path: Path) -> None:
    server = canned("canned")
    with running(server, log=tmp_path / "log") as process:
        assert process.resident_bytes() > 2**20
        assert process.seconds_to_ready > 0
        pid = process.pid
    assert not Path(f"/proc/{pid}").exists()


def test_a_server_that_ends_shows_its_last_words(tmp_path: Path) -> None:
    server = Server("broken", (sys.executable, "-c", "raise SystemExit('no model')"), 9, "/ready")
    with (
        pytest.raises(RuntimeError, match=r"broken is not ready[^$]*no model"),
        running(server, log=tmp_path / "l"),
    ):
        pass


def test_rounds_take_turns_and_are_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(
        num_rounds=2, concurrencies=(2,), requests_per_client=1, answer_tokens=5, num_long_prompts=2
    )
    rows = run_rounds([lambda: canned("ours"), lambda: canned("theirs")], settings, tmp_path)
    assert [row["server"] for row in rows] == ["ours", "ours", "theirs", "theirs"] * 2
    medians = median_rows(rows, ("server", "workload", "concurrency"))
    compared = ratios(medians, "ours", "theirs")
    assert [row["workload"] for row in compared] == ["answer", "prompt"]
    for row in compared:
        assert row["ratio"] == row["ours"] / row["theirs"]


def test_both_servers_are_started_on_the_same_threads_and_slots() -> None:
    ours = triolet_server("m.gguf", num_threads=2, num_slots=32)
    theirs = llama_server(Path("/bin/llama-server"), Path("m.gguf"), num_threads=2, num_slots=32)
    assert {"m.gguf", "--num-threads", "2", "--max-num-seqs", "32"} <= set(ours.command)
    assert {"m.gguf", "--threads", "2", "--parallel", "32", "--threads-http", "48"} <= set(theirs.command)
