from __future__ import annotations

import sys
from pathlib import Path

import pytest
from bench.servers import Server, llama_server, running, triolet_server, vllm_server
from tests.bench.canned_process import canned_process


def test_a_server_runs_inside_the_block_only(tmp_path: Path) -> None:
    server = canned_process("canned")
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


def test_both_servers_are_started_on_the_same_threads_and_slots() -> None:
    ours = triolet_server("m.gguf", num_threads=2, num_slots=32)
    theirs = llama_server(Path("/bin/llama-server"), Path("m.gguf"), num_threads=2, num_slots=32)
    assert {"m.gguf", "--num-threads", "2", "--max-num-seqs", "32"} <= set(ours.command)
    assert {"m.gguf", "--threads", "2", "--parallel", "32", "--threads-http", "48"} <= set(theirs.command)


@pytest.mark.parametrize(("context", "all_slots"), [(1024, "4096"), (8192, "32768")])
def test_each_slot_of_llama_server_has_the_context_asked_for(context: int, all_slots: str) -> None:
    server = llama_server(Path("/bin/l"), Path("m.gguf"), num_threads=2, num_slots=4, context=context)
    assert server.command[server.command.index("--ctx-size") + 1] == all_slots


def test_vllm_is_started_by_its_own_python_on_as_many_cores() -> None:
    server = vllm_server(Path("/v/bin/python"), Path("/m"), num_threads=2, num_slots=32, context=8192)
    assert server.command[:3] == ("/v/bin/python", "-m", "vllm.entrypoints.openai.api_server")
    assert {"/m", "--max-num-seqs", "32", "--max-model-len", "8192", str(server.port)} <= set(server.command)
    assert server.environment["VLLM_CPU_OMP_THREADS_BIND"] == "0-1"
    assert server.environment["PYTHONPATH"] == "", "our own sources are of no use to it"
